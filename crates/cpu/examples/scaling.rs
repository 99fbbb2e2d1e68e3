//! Prints the tables of `docs/scaling.md`.
#![forbid(unsafe_code)]

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(girih_cpu::scaling::report().as_bytes())
}
