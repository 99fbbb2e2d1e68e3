#!/usr/bin/env bash
# Builds the libraries for C and checks them: the header, the exported functions, and programs in C and C++ that gcc and
# clang compile and that run also under valgrind. It says what it skips because a tool is missing.
#
#     crates/capi/check.sh [--update] [FOLDER]
#
# FOLDER gets the libraries; `--update` writes the header and the list of functions again.
set -euo pipefail
cd "$(dirname "$0")/../.."

update=
if [ "${1:-}" = --update ]; then
    update=1
    shift
fi
target="${CARGO_TARGET_DIR:-target}"
profile="${CAPI_PROFILE:-release}"
out="$(realpath -m "${1:-$target/capi}")"
here=crates/capi
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
# The name that programs ask for has what may not change between compatible versions, as cargo-c has it.
case "$version" in
0.*) soname="libgirih.so.$(cut -d. -f1-2 <<<"$version")" ;;
*) soname="libgirih.so.$(cut -d. -f1 <<<"$version")" ;;
esac

skipped() {
    echo "skipped: $*" >&2
}

# The shared library, the static one, the header and the description for pkg-config, as cargo-c would install them. All default
# members are built, so that packages have the features that they have in `cargo run` and `cargo test`.
build() {
    local flags=() built="$target/$profile"
    case "$profile" in
    release) flags=(--release) ;;
    dev) built="$target/debug" ;;
    esac
    cargo build -q --locked "${flags[@]}" --lib
    rm -rf "$out"
    mkdir -p "$out"
    cp "$built/libgirih_capi.so" "$out/libgirih.so.$version"
    cp "$built/libgirih_capi.a" "$out/libgirih.a"
    ln -s "libgirih.so.$version" "$out/$soname"
    ln -s "$soname" "$out/libgirih.so"
    cp "$here/include/girih.h" "$out/girih.h"
    cat >"$out/girih.pc" <<PC
prefix=$out
Name: girih
Description: Runs open-weight language models
Version: $version
Libs: -L\${prefix} -lgirih
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
Cflags: -I\${prefix}
PC
}

# compare MADE COMMITTED: the committed file is what was made.
compare() {
    if [ -n "$update" ]; then
        cp "$1" "$2"
    elif ! diff -u "$2" "$1"; then
        echo "$2 differs from the library: run crates/capi/check.sh --update" >&2
        return 1
    fi
}

header() {
    local tool="${CBINDGEN:-cbindgen}"
    if ! [[ "$("$tool" --version 2>/dev/null)" == "cbindgen 0.29."* ]]; then
        skipped "the header against the source: no cbindgen 0.29 (cargo install cbindgen --version 0.29.4)"
        return
    fi
    "$tool" --config "$here/cbindgen.toml" --crate girih-capi --output "$out/made.h" "$here"
    compare "$out/made.h" "$here/include/girih.h"
}

# The exported functions are those of the list and of the header.
functions() {
    nm -D --defined-only "$out/libgirih.so" | awk '$2 == "T" {print $3}' | sort >"$out/functions"
    compare "$out/functions" "$here/functions.txt"
    grep -oE '\b(girih|ie)_[a-z0-9_]+\(' "$here/include/girih.h" | tr -d '(' | sort -u >"$out/declared"
    diff -u "$out/functions" "$out/declared"
    readelf -d "$out/libgirih.so" | grep -q "SONAME.*\[$soname\]"
}

# The golden ids for the programs, and an encoder whose tokenizer is another one, as its texts are tokens.
golden() {
    mkdir "$out/bert"
    cp tests/fixtures/bert/{config.json,model.safetensors} "$out/bert/"
    cp tests/tokenizers/wordpiece-lower.json "$out/bert/tokenizer.json"
    python3 - tests/fixtures/stories260k/golden.json >"$out/golden.h" <<'PY'
import json, sys

runs = json.load(open(sys.argv[1]))["runs"]
print("#include <stddef.h>\n#include <stdint.h>")
print(f"#define GOLDEN_RUNS {len(runs)}u")
print("struct golden { const char *prompt; size_t prompt_count; size_t count; uint32_t ids[256]; };")
print("static const struct golden GOLDEN[GOLDEN_RUNS] = {")
for run in runs:
    ids = ", ".join(map(str, run["ids_f32"]))
    print(f"    {{{json.dumps(run['prompt'])}, {len(run['prompt_ids'])}, {len(run['ids_f32'])}, {{{ids}}}}},")
print("};")
PY
}

# compile COMPILER STANDARD SOURCE PROGRAM LIBRARY…
compile() {
    local compiler="$1" standard="$2" source="$3" program="$4"
    shift 4
    "$compiler" -std="$standard" -O1 -g -Wall -Wextra -Werror -pedantic -I"$out" "$source" -o "$out/$program" \
        "$@" -lpthread
}

programs() {
    # shellcheck disable=SC2054 # the commas are the linker's
    local shared=(-L"$out" -lgirih -Wl,-rpath,"$out")
    local compiler plus
    for compiler in gcc clang; do
        plus=g++
        [ "$compiler" = clang ] && plus=clang++
        if ! command -v "$compiler" >/dev/null; then
            skipped "programs compiled by $compiler: it is not installed"
            continue
        fi
        compile "$compiler" c99 "$here/tests/c/contract.c" "contract-$compiler" "${shared[@]}"
        compile "$compiler" c99 "$here/examples/generate.c" "generate-$compiler" "${shared[@]}"
        compile "$plus" c++17 "$here/examples/poll.cpp" \
            "poll-$compiler" "${shared[@]}"
        "$out/generate-$compiler" >"$out/generate.txt"
        "$out/poll-$compiler" >"$out/poll.txt"
        grep -q '"stop":"length"' "$out/generate.txt"
        diff <(grep -o '"ids":[^]]*' "$out/generate.txt") <(grep -o '"ids":[^]]*' "$out/poll.txt")
        parts "$out/contract-$compiler"
    done
}

# parts PROGRAM…: what the program promises; nothing is printed by the library.
parts() {
    local part
    for part in replies refusals "embeddings $out/bert" engine "sparse $out/matrix.iebs" threads; do
        # shellcheck disable=SC2086 # the arguments are words
        "$@" $part >"$out/printed.txt" 2>&1 || { cat "$out/printed.txt" >&2 && return 1; }
        if [ -s "$out/printed.txt" ]; then
            echo "the library printed:" >&2
            cat "$out/printed.txt" >&2
            return 1
        fi
    done
}

# The static library, in the same program.
static() {
    compile gcc c99 "$here/tests/c/contract.c" contract-static "$out/libgirih.a" -lgcc_s -lm -ldl -lrt -lutil
    "$out/contract-static" replies
}

memory() {
    if ! command -v valgrind >/dev/null; then
        skipped "valgrind: it is not installed"
        return
    fi
    local part
    for part in refusals engine "sparse $out/matrix.iebs"; do
        # shellcheck disable=SC2086 # the arguments are words
        valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect \
            --errors-for-leak-kinds=definite,indirect \
            "$out/contract-gcc" $part
    done
}

seconds() {
    local name="$1" start=$SECONDS
    shift
    "$@"
    echo "capi: $((SECONDS - start)) s $name"
}

seconds build build
seconds header header
seconds functions functions
golden
seconds programs programs
seconds static static
seconds memory memory
seconds cycles "$out/contract-gcc" cycles "${CAPI_CYCLES:-300}"
