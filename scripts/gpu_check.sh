#!/bin/sh
# Checks a GPU: prints the adapters, verifies fixtures on one, and measures the models given.
#
#     scripts/gpu_check.sh GIRIH [BACKEND] [MODEL...]
#
# GIRIH is a program with the feature `gpu`. BACKEND is such as gpu or gpu:vulkan:0 (default: gpu). Needs the fixtures of
# this repository. On an H100 the fixtures take 25 s.
set -u
girih=$(realpath "$1")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
backend=${2:-gpu}
[ $# -gt 2 ] && shift 2 || shift $#
cd "$(dirname "$0")/.." || exit 1
failed=0

echo "# adapters"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$girih" doctor 2>&1 | grep -i -A3 gpu

echo "# fixtures on $backend"
for name in llama32_tied qwen3 qwen3_5 gemma3_text gemma4 gpt_oss deepseek_v3 granitemoehybrid lfm2 bert; do
    folder=tests/fixtures/$name
    if ! [ -f "$folder/golden.safetensors" ]; then
        echo "MISSING $name"
        failed=1
        continue
    fi
    for kv in f32 f16; do
        options="--backend $backend --kv $kv"
        # An encoder has no KV cache.
        [ "$name" = bert ] && options="--backend $backend"
        # shellcheck disable=SC2086
        if timeout 60 "$girih" verify "$folder" --golden "$folder/golden.safetensors" $options >"$log" 2>&1; then
            echo "ok      $name $kv"
        else
            echo "FAILED  $name $kv"
            tail -3 "$log"
            failed=1
        fi
        [ "$name" = bert ] && break
    done
done
# part NAME OPTION…: a part of a fixture on the GPU, the rest on the CPU.
part() {
    folder=tests/fixtures/$1
    part=$*
    shift
    if timeout 60 "$girih" verify "$folder" --golden "$folder/golden.safetensors" --backend "$backend" "$@" >"$log" 2>&1; then
        echo "ok      $part"
    else
        echo "FAILED  $part"
        tail -3 "$log"
        failed=1
    fi
}
for name in qwen3 qwen3_5 gpt_oss; do
    part "$name" --gpu-layers 1
done
for name in gpt_oss deepseek_v3 granitemoehybrid gemma4 laguna cohere2_moe; do
    part "$name" --cpu-experts
    part "$name" --cpu-experts --kv f16
done

# The same text by each kernel of products: steps of one row, of few, and of many by each unit. Arguments: model, chunk, option.
text() {
    model=$1 chunk=$2
    shift 2
    prompt=$(seq 1 60 | tr '\n' ' ')
    timeout 100 "$girih" run "$model" "$prompt" --backend "$backend" --chunk "$chunk" -n 32 --temperature 0 "$@" 2>"$log"
}
same_texts() {
    first=$(text "$1" 1) || { tail -3 "$log"; return 1; }
    for chunk in 7 64 512; do
        [ "$(text "$1" "$chunk")" = "$first" ] || { echo "FAILED  --chunk $chunk has another text"; tail -3 "$log"; return 1; }
    done
    [ "$(text "$1" 512 --gpu-products dot)" = "$first" ] || { echo "FAILED  --gpu-products dot has another text"; return 1; }
    echo "ok      the same text by --chunk 1, 7, 64, 512 and --gpu-products dot"
}

small=$(mktemp -d)
for type in q4_0 q6_k; do
    echo "# stories260k, $type"
    "$girih" quantize stories260k "$small/$type.gguf" --type "$type" --quiet && same_texts "$small/$type.gguf" || failed=1
done
rm -rf "$small"

for model in "$@"; do
    echo "# $model"
    same_texts "$model" || failed=1
    timeout 100 "$girih" bench "$model" --backend "$backend" --kv f16 --gpu-products dot -p 512 -n 8 -r 2 || failed=1
    timeout 100 "$girih" bench "$model" --backend "$backend" --kv f16 -p 512,2048 -n 64 -r 2 || failed=1
    timeout 60 "$girih" profile "$model" --backend "$backend" --kv f16 || failed=1
done
exit $failed
