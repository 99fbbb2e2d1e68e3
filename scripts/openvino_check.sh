#!/bin/sh
# Verifies fixtures on OpenVINO's CPU device, in chunks of several sizes, and that what it cannot run is refused by name.
#
#     scripts/openvino_check.sh GIRIH LIBRARY [BACKEND]
#
# LIBRARY is OpenVINO's libopenvino_c or its folder, such as openvino/libs of a Python's packages. BACKEND is such as openvino:GPU
# (default: openvino:CPU). Needs the fixtures of this repository. On two cores it takes a minute.
set -u
girih=$(realpath "$1")
library=$(realpath "$2")
backend=${3:-openvino:CPU}
cd "$(dirname "$0")/.." || exit 1
failed=0

# verified NAME OPTION…: prints whether a fixture passes.
verified() {
    name=$1
    shift
    folder=tests/fixtures/$name
    said=$(timeout 60 "$girih" verify "$folder" --golden "$folder/golden.safetensors" --backend "$backend" \
        --openvino-lib "$library" "$@" 2>&1) && echo "ok      $name $*" && return
    echo "FAILED  $name $*"
    echo "$said" | tail -3
    failed=1
}

for name in bert nomic_bert; do
    verified "$name"
done
for name in cohere2_moe exaone4 gemma gemma2 gemma3_text gemma3_vision gpt_oss helium lfm2 llama32_tied llama_biased ministral mlx qwen2 qwen3; do
    verified "$name" --kv f32
done
for form in hidden windows; do
    for kv in f16 bf16; do
        verified qwen3 --kv "$kv" --openvino-kv "$form"
    done
    for chunk in 1 7 64; do
        verified gemma3_text --kv f32 --chunk "$chunk" --openvino-kv "$form"
        verified qwen3 --kv f16 --chunk "$chunk" --openvino-kv "$form"
    done
done
for name in gemma gemma2 helium llama32_tied; do
    verified "$name" --kv f32 --openvino-kv windows
done
for name in deepseek_v3 qwen3_5; do
    said=$("$girih" verify "tests/fixtures/$name" --golden "tests/fixtures/$name/golden.safetensors" --backend "$backend" \
        --openvino-lib "$library" 2>&1)
    case $said in
        *"does not run"*"has no code for the op"*) echo "refused $name" ;;
        *)
            echo "FAILED  $name is not refused: $said"
            failed=1
            ;;
    esac
done
for name in lfm2; do
    said=$("$girih" verify "tests/fixtures/$name" --golden "tests/fixtures/$name/golden.safetensors" --backend "$backend" \
        --openvino-lib "$library" --openvino-kv hidden 2>&1)
    case $said in
        *"a hidden KV cache"*"use --openvino-kv windows"*) echo "refused $name hidden" ;;
        *)
            echo "FAILED  $name is not refused with hidden keys and values: $said"
            failed=1
            ;;
    esac
done
# Models of fixed shapes, through OpenVINO's wrapper for NPUs over the processor, with chunks that they fill up.
if [ "$backend" = openvino:CPU ]; then
    backend=openvino:NPU
    for name in gemma3_text lfm2 qwen3; do
        verified "$name" --kv f32 --chunk 64 --openvino-npuw CPU
    done
    verified qwen3 --kv f16 --chunk 7 --openvino-npuw CPU
    backend=openvino:CPU
    verified qwen3 --kv f32 --chunk 7 --openvino-shapes fixed
fi
exit $failed
