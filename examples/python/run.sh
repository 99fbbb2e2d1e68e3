#!/usr/bin/env bash
# Runs the examples with the wheel that scripts/python_check.sh built: run.sh WHEEL STORIES. STORIES is the folder of
# stories260K as transformers reads it. Needs PyPI: lm-evaluation-harness, transformers, torch, llm and langchain-openai.
set -euo pipefail
wheel="$(realpath "$1")"
stories="$(realpath "$2")"
cd "$(dirname "$0")"
folder="$(realpath -m "${CARGO_TARGET_DIR:-../../target}")/python_examples"
bin="${GIRIH_EXAMPLES_BIN:-$folder/venv/bin}"
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 LLM_USER_PATH="$folder/llm"
mkdir -p "$folder"

if [ ! -x "$bin/python" ]; then
    python3 -m venv "$folder/venv"
    "$bin/pip" install --quiet --disable-pip-version-check 'lm-eval[hf]==0.4.13' llm==0.36 langchain-openai==1.7.4
fi
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
python="$bin/python"

"$python" quick_start.py
"$python" beside_transformers.py "$stories" | tee "$folder/beside.txt"
grep -q "greedy tokens equal: True" "$folder/beside.txt"

# The figures of both are equal: log-likelihoods within what f32 rounds, accuracies exactly.
cd lm_eval
"$python" girih_lm.py "$stories" stories >"$folder/girih.json"
"$python" transformers_figures.py "$stories" >"$folder/transformers.json"
"$python" compare.py "$folder/girih.json" "$folder/transformers.json"
cd ..

"$python" llm_girih_check.py

# A port that the system chooses.
log="$folder/serve.log"
"$bin/girih" serve stories260k --port 0 >"$log" 2>&1 &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
    url="$(grep -o 'http://[0-9.:]*' "$log" | head -1 || true)"
    [ -n "$url" ] && break
    sleep 0.1
done
"$python" langchain_server.py "$url" stories260k
