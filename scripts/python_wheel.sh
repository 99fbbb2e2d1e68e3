#!/usr/bin/env bash
# Builds the wheel of girih into the folder OUT: python_wheel.sh OUT [MATURIN_OPTION…]. `maturin` is looked up in PATH.
# Options of maturin concern packing; WORKSPACE_BUILD replaces the cargo command of workspace_cargo.sh, which builds.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$(realpath -m "$1")"
shift

# maturin asks for the folder before cargo fills it.
mkdir -p crates/python/wheel_data
CARGO="$PWD/scripts/workspace_cargo.sh" \
    maturin build --release --locked --manifest-path crates/python/Cargo.toml --out "$out" "$@"
