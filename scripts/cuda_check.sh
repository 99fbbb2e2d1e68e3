#!/bin/bash
# Checks the kernels for CUDA on a machine with an NVIDIA GPU, and measures them beside Vulkan's. It takes less than four minutes.
#
#     scripts/cuda_check.sh GIRIH [MODEL]
#
# GIRIH is a program with the feature `gpu`. MODEL is a GGUF whose matrices are all in Q4_0, such as the one that
# `scripts/random_gguf.py llama-3.1-8b 8b.gguf` makes. Needs the fixtures of this repository.
set -u
girih=$(realpath "$1")
model=${2:+$(realpath "$2")}
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
    first=$(text "$1" gpu:cuda 1) && [ -n "$first" ] || { echo "FAILED  no text"; tail -3 "$log"; return 1; }
    for chunk in 7 40 64 512; do
        [ "$(text "$1" gpu:cuda "$chunk")" = "$first" ] || { echo "FAILED  --chunk $chunk has another text"; tail -3 "$log"; return 1; }
    done
    echo "ok      the same text by --chunk 1, 7, 40, 64, 512"
}

echo "# device"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$girih" doctor 2>&1 | grep -i "cuda\|vulkan"

for name in stories260k llama32_tied qwen3 mistral gemma; do
    echo "# $name in q4_0, layer by layer beside the interpreter"
    small=$folder/$name.gguf
    source=tests/fixtures/$name
    [ -d "$source" ] || source=$name
    said "quantize" "$girih" quantize "$source" "$small" --type q4_0 --quiet || continue
    said "diagnose" "$girih" diagnose "$small" --reference interpreter --backend gpu:cuda --kv f16
    same_texts "$small" || failed=1
done

[ -n "$model" ] || exit $failed
echo "# $model"
same_texts "$model" || failed=1
for round in 1 2; do
    for backend in gpu:cuda gpu:vulkan; do
        echo "# round $round, $backend"
        timeout 60 "$girih" bench "$model" --backend $backend --kv f16 -p 512,2048 -n 64 -r 2 || failed=1
    done
done
timeout 60 "$girih" profile "$model" --backend gpu:cuda --kv f16 || failed=1
exit $failed
