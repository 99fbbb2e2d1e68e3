#!/usr/bin/env bash
# Builds the wheel of girih: python_wheel.sh PROGRAM OUT [MATURIN_OPTION…]. PROGRAM is the built program `girih`, which the wheel
# brings as a script; OUT is the folder for the wheel. `maturin` is looked up in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
program="$(realpath "$1")" out="$(realpath -m "$2")"
shift 2

scripts=crates/python/wheel_data/scripts
mkdir -p "$scripts"
install -m 755 "$program" "$scripts/girih"
maturin build --release --locked --manifest-path crates/python/Cargo.toml --out "$out" "$@"
