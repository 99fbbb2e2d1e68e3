#!/usr/bin/env bash
# The cargo of maturin (CARGO=…) where the workspace is built already. `cargo rustc` of one package chooses features for this
# package alone, and so would build most packages once more; a build of the default members takes those that are there.
set -euo pipefail
if [ "${1:-}" = rustc ]; then
    exec cargo build --release --locked --lib --message-format json-render-diagnostics
fi
exec cargo "$@"
