#!/bin/bash
# Checks the kernels for CUDA on a machine with an NVIDIA GPU, and measures them beside Vulkan's. It takes less than four minutes.
#
#     scripts/cuda_check.sh GIRIH TESTS [MODEL [TEXTS]]
#
# GIRIH is a program with the feature `gpu`; TESTS is the test binary `gpu` (cargo test -p girih-gpu --test gpu --no-run). MODEL is a
# GGUF in Q4_0 whose head may be in Q6_K, such as the one that `scripts/random_gguf.py llama-3.1-8b 8b.gguf` makes; TEXTS is
# one with a tokenizer, whose texts by several chunks are compared. Needs the fixtures of this repository.
set -u
girih=$(realpath "$1")
tests=$(realpath "$2")
model=${3:+$(realpath "$3")}
texts=${4:+$(realpath "$4")}
cd "$(dirname "$0")/.." || exit 1
folder=$(mktemp -d)
log=$folder/log
trap 'rm -rf "$folder"' EXIT
failed=0

# said NAME COMMAND…: runs a command for at most a minute, and says whether it failed.
said() {
    local name=$1 begin=$SECONDS
    shift
    if timeout 60 "$@" >"$log" 2>&1; then
        echo "ok      $name ($((SECONDS - begin)) s)"
    else
        echo "FAILED  $name (status $?)"
        tail -5 "$log"
        failed=1
        return 1
    fi
}

# text MODEL BACKEND CHUNK [OPTION…]: a greedy reply to a prompt of many tokens.
text() {
    local model=$1 backend=$2 chunk=$3
    shift 3
    timeout 60 "$girih" run "$model" "$(seq 1 120 | tr '\n' ' ')" --backend "$backend" --kv f16 --chunk "$chunk" -n 48 \
        --temperature 0 "$@" 2>"$log"
}

# same_texts MODEL: steps of one row, of few, and of many by both tiles of matrix units have the same text.
same_texts() {
    local first chunk
    first=$(text "$1" gpu:cuda 1)
    if [ -z "$first" ]; then
        echo "FAILED  no text"
        tail -3 "$log"
        return 1
    fi
    for chunk in 7 40 64 512; do
        [ "$(text "$1" gpu:cuda "$chunk")" = "$first" ] || { echo "FAILED  --chunk $chunk has another text"; tail -3 "$log"; return 1; }
    done
    echo "ok      the same text by --chunk 1, 7, 40, 64, 512"
}

echo "# device"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$girih" doctor 2>&1 | grep -i vulkan

# Every matrix in q4_0, the head, too.
printf '[[rule]]\ntensors = "*"\ntype = "q4_0"\n' >"$folder/recipe.toml"
for name in llama_biased qwen3 gemma3_text; do
    echo "# $name in q4_0, layer by layer beside the interpreter"
    small=$folder/$name.gguf
    said "quantize" "$girih" quantize "tests/fixtures/$name" "$small" --type q4_0 --recipe "$folder/recipe.toml" --quiet || continue
    said "diagnose" "$girih" diagnose "$small" --reference interpreter --backend gpu:cuda --kv f16
done

echo "# the conformance suite on the device"
said "tests" env GIRIH_CUDA=device "$tests" cuda

[ -n "$model" ] || exit $failed
echo "# $model"
if [ -n "$texts" ]; then
    same_texts "$texts" || failed=1
fi
for round in 1 2; do
    for backend in gpu:cuda gpu:vulkan; do
        echo "# round $round, $backend"
        timeout 60 "$girih" bench "$model" --backend $backend --kv f16 -p 512,2048 -n 64 -r 2 || failed=1
    done
done
timeout 60 "$girih" profile "$model" --backend gpu:cuda --kv f16 || failed=1
exit $failed
