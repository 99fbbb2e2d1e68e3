#!/usr/bin/env bash
# The cargo of maturin (CARGO=…) where the workspace is built already. `cargo rustc` of one package chooses features for this
# package alone, and so would build most packages once more; a build of the default members, or WORKSPACE_BUILD, takes those that
# are there. Before maturin packs, `stage_wheel.py` prepares the library and the program.
set -euo pipefail
if [ "${1:-}" = rustc ]; then
    if [ -z "${WORKSPACE_BUILD:-}" ] && [[ " $* " = *" --features "* || " $* " = *" --target "* ]]; then
        echo "workspace_cargo.sh: maturin's --features and --target do not reach cargo; WORKSPACE_BUILD must name the build that has them" >&2
        exit 2
    fi
    # With these, pyo3 would be built once more; a library for the stable interface does not depend on them.
    unset PYO3_CONFIG_FILE PYO3_ENVIRONMENT_SIGNATURE PYO3_PYTHON
    read -ra command <<<"${WORKSPACE_BUILD:-build --release --locked --lib --bin girih-launcher}"
    cargo "${command[@]}" --message-format json-render-diagnostics | python3 "$(dirname "$0")/stage_wheel.py"
    exit
fi
exec cargo "$@"
