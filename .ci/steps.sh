# Shared by `.ci/run` and `.ci/long`: the test data, and steps whose seconds are printed at the end.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${GIRIH_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
    GIRIH_TEST_DATA=../shared/data
fi
for folder in fixtures models/stories260K tokenizer-golden vocab chat-golden quant-golden configs; do
    if [ ! -d "${GIRIH_TEST_DATA:-}/$folder" ]; then
        echo "GIRIH_TEST_DATA='${GIRIH_TEST_DATA:-}' holds no folder $folder: set it to the test data" >&2
        exit 1
    fi
done
GIRIH_TEST_DATA="$(cd "$GIRIH_TEST_DATA" && pwd)" # tests start in other folders
export GIRIH_TEST_DATA

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")" # some steps start in other folders
table=()

# step NAME COMMAND…: runs the command and records its seconds under the name.
step() {
    local name="$1" start=$SECONDS
    shift
    echo "+ $*" >&2
    local code=0
    "$@" || code=$?
    table+=("$(printf '%6d  %s' $((SECONDS - start)) "$name")")
    return $code
}

print_table() {
    printf '\nseconds step\n'
    printf '%s\n' "${table[@]}"
    printf '%6d  all\n' "$SECONDS"
}
trap print_table EXIT

for tool in rustfmt clippy; do
    if ! cargo "${tool/rustfmt/fmt}" --version >/dev/null 2>&1; then
        step "install $tool" rustup component add "$tool"
    fi
done

# OpenVINO's wheel for the tests of girih-openvino, unless GIRIH_OPENVINO_LIB names a library; without one they say that they
# are skipped.
openvino_wheel() {
    if [ -z "${GIRIH_OPENVINO_LIB:-}" ]; then
        python3 -m pip install --quiet --no-deps --upgrade --target "$target/openvino" openvino==2026.4.1
    fi
}

# Names the wheel's library to the tests.
openvino_library() {
    if [ -z "${GIRIH_OPENVINO_LIB:-}" ]; then
        GIRIH_OPENVINO_LIB="$(realpath "$target/openvino/openvino/libs")" # tests start in other folders
        export GIRIH_OPENVINO_LIB
    fi
}
