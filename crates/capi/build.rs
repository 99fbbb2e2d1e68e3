//! Gives the shared library the name that programs ask for when they start: `libgirih.so`, and of the version what must
//! be equal. `cargo-c` gives the same. The functions for C of other packages stay inside.

fn main() {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgirih.so.{version}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
