#!/usr/bin/env bash
# Builds girih's packages into target/dist, for one or more targets:
#
#   packaging/build.sh x86_64-gnu aarch64-gnu x86_64-musl aarch64-musl
#
# The programs of `gnu` have every backend and run with glibc 2.17 or later; those of `musl` are static and have the CPU and the
# array. `gnu` targets give an archive, a `.deb`, an `.rpm` and a wheel for Python; `musl` targets give an archive and a container
# image. At the end stand the bill of materials, checksums and a statement of provenance, which is not signed. `check.sh --again`
# builds again in another folder and compares the bytes.
#
# It needs cargo-zigbuild and zig (`pip install cargo-zigbuild ziglang`), the targets of rustup, Python 3, dpkg-deb, for `.rpm`
# rpmbuild (Debian's package `rpm`), and for the wheel maturin. The first program writes the manual pages and completions of all;
# one for aarch64 needs qemu-aarch64-static and Debian's package libc6-arm64-cross to run on x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "$0" >&2; exit 2; }

root="$PWD"
target="${CARGO_TARGET_DIR:-$root/target}"
out="$root/target/dist"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
commit="$(git rev-parse HEAD)"
[ -z "$(git status --porcelain --untracked-files=no)" ] || commit="$commit-changed"
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0 LC_ALL=C TZ=UTC
umask 022
cargo_home="${CARGO_HOME:-$HOME/.cargo}"
rust_source="$(rustc --print sysroot)"
# The library of the wheel leaves Python's functions to the interpreter that loads it.
export PYO3_BUILD_EXTENSION_MODULE=1
# Paths of this machine do not reach the program.
RUSTFLAGS="--remap-path-prefix=$root=girih --remap-path-prefix=$target=girih/target"
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$cargo_home=cargo --remap-path-prefix=$rust_source=rust"
CFLAGS="-ffile-prefix-map=$root=girih -ffile-prefix-map=$target=girih/target -ffile-prefix-map=$cargo_home=cargo"
export RUSTFLAGS CFLAGS

# triple NAME: the target as cargo-zigbuild writes it, with the oldest glibc.
triple() {
    case "$1" in
        x86_64-gnu) echo x86_64-unknown-linux-gnu.2.17 ;;
        aarch64-gnu) echo aarch64-unknown-linux-gnu.2.17 ;;
        x86_64-musl) echo x86_64-unknown-linux-musl ;;
        aarch64-musl) echo aarch64-unknown-linux-musl ;;
        *) echo "unknown target '$1': use x86_64-gnu, aarch64-gnu, x86_64-musl or aarch64-musl" >&2; exit 2 ;;
    esac
}

# A tar archive whose bytes follow from its files alone.
archive() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar "$@"
}

# build NAME: the command of cargo for a target. The program and the library of the wheel are built at once, so that packages which
# both need are built once.
build() {
    local what=(-p girih-cli --no-default-features)
    [[ $1 = *-musl ]] || what=(-p girih-cli -p girih-python --features "girih-cli/gpu,girih-python/gpu")
    echo zigbuild --release --locked "${what[@]}" --target "$(triple "$1")"
}

# program NAME: builds the program of a target and prints its path.
program() {
    local triple command
    triple="$(triple "$1")"
    read -ra command <<<"$(build "$1")"
    cargo "${command[@]}" >&2
    echo "$target/${triple%.2.17}/release/girih"
}

# wheel NAME
wheel() {
    command -v maturin >/dev/null || { echo "no wheel: maturin is not installed" >&2; return; }
    local triple
    triple="$(triple "$1")"
    WORKSPACE_BUILD="$(build "$1")" scripts/python_wheel.sh "$out" --quiet --features gpu --target "${triple%.2.17}" \
        --compatibility manylinux2014 --compression-level 9
}

# pages PROGRAM: the manual pages, completions and documents, which are the same for every target.
pages() {
    local share="$out/share" run=("$1")
    [[ $1 != */aarch64-* || $(uname -m) = aarch64 ]] || run=(qemu-aarch64-static -L /usr/aarch64-linux-gnu "$1")
    mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d,doc/girih}
    "${run[@]}" man --output-folder "$share/man/man1" >/dev/null
    gzip -n9 "$share"/man/man1/*.1
    "${run[@]}" completions bash >"$share/bash-completion/completions/girih"
    "${run[@]}" completions zsh >"$share/zsh/site-functions/_girih"
    "${run[@]}" completions fish >"$share/fish/vendor_completions.d/girih.fish"
    cp README.md LICENSE CHANGELOG.md "$share/doc/girih/"
}

# stage FOLDER PROGRAM: a tree as below /usr.
stage() {
    mkdir -p "$1/bin"
    install -m 755 "$2" "$1/bin/girih"
    cp -r "$out/share" "$1/share"
}

# The changes in Debian's form, which name the file with all.
debian_changelog() {
    printf 'girih (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz in this folder.\n\n' "$version"
    printf ' -- The girih developers <girih@localhost>  %s\n' "$(date -uRd "@$SOURCE_DATE_EPOCH")"
}

# deb ARCHITECTURE PROGRAM
deb() {
    local tree="$work/deb-$1" files
    local documents="$tree/usr/share/doc/girih"
    stage "$tree/usr" "$2"
    gzip -n9 "$documents/CHANGELOG.md"
    debian_changelog | gzip -n9 >"$documents/changelog.gz"
    cp packaging/copyright "$documents/"
    rm "$documents/LICENSE"
    # The settings may hold a key.
    mkdir -p "$tree/usr/share/lintian/overrides"
    echo 'girih: non-standard-file-perm 0640 != 0644 [etc/girih/serve.env]' >"$tree/usr/share/lintian/overrides/girih"
    mkdir -p "$tree/usr/share/zsh/vendor-completions" "$tree/usr/lib/systemd/system" "$tree/etc/girih" "$tree/DEBIAN"
    mv "$tree"/usr/share/zsh/site-functions/_girih "$tree/usr/share/zsh/vendor-completions/"
    rmdir "$tree/usr/share/zsh/site-functions"
    install -m 644 packaging/girih.service "$tree/usr/lib/systemd/system/"
    install -m 640 packaging/serve.env "$tree/etc/girih/"
    echo /etc/girih/serve.env >"$tree/DEBIAN/conffiles"
    install -m 755 packaging/prerm "$tree/DEBIAN/"
    sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$1/; s/@SIZE@/$(du -sk "$tree/usr" | cut -f1)/" \
        packaging/control >"$tree/DEBIAN/control"
    files="$(cd "$tree" && find usr etc -type f | sort)"
    (cd "$tree" && xargs md5sum <<<"$files" >DEBIAN/md5sums)
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/girih_${version}_$1.deb" >/dev/null
}

# rpm ARCHITECTURE PROGRAM
rpm() {
    command -v rpmbuild >/dev/null || { echo "no .rpm: rpmbuild is not installed" >&2; return; }
    local tree="$work/rpm-$1"
    stage "$tree/usr" "$2"
    mkdir -p "$tree/usr/lib/systemd/system" "$tree/etc/girih"
    install -m 644 packaging/girih.service "$tree/usr/lib/systemd/system/"
    install -m 640 packaging/serve.env "$tree/etc/girih/"
    rpmbuild -bb --quiet --target "$1" --define "_topdir $work/rpm" --define "tree $tree" \
        --define "version_of_girih $version" --define "_rpmdir $out" --define "_build_name_fmt girih-%{VERSION}-1.%{ARCH}.rpm" \
        --define "_buildhost girih" --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" --define "_build_id_links none" packaging/girih.spec
}

rm -rf "$out"
mkdir -p "$out"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

for name in "$@"; do
    program="$(program "$name")"
    [ -d "$out/share" ] || pages "$program"
    architecture="${name%-*}"
    folder="girih-$version-$architecture-linux${name#"$architecture"}"
    stage "$work/$folder" "$program"
    archive -C "$work" -c "$folder" | gzip -n9 >"$out/$folder.tar.gz"
    case "$name" in
        x86_64-gnu) deb amd64 "$program"; rpm x86_64 "$program"; wheel "$name" ;;
        aarch64-gnu) deb arm64 "$program"; rpm aarch64 "$program"; wheel "$name" ;;
        *-musl) python3 packaging/image.py "$program" "$out/girih-$version-$architecture.oci.tar" --architecture "$architecture" \
            --version "$version" --revision "$commit" ;;
    esac
done
rm -rf "$out/share"
cp packaging/install.sh "$out/"
cargo run --locked -q -p xtask -- sbom >"$out/girih-$version.cdx.json"
(cd "$out" && sha256sum -- * >SHA256SUMS)
python3 packaging/provenance.py "$out" --version "$version" --commit "$commit" --targets "$@" >"$work/provenance.json"
mv "$work/provenance.json" "$out/girih-$version.provenance.json"
(cd "$out" && ls -l)
