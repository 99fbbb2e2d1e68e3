#!/usr/bin/env bash
# Runs the examples of Ray with a wheel: ray_check.sh WHEEL. A batch that is killed goes on where it was, and has the replies of
# one that was not. Needs PyPI: ray with data and serve, which takes 700 MB.
set -euo pipefail
wheel="$(realpath "$1")"
cd "$(dirname "$0")"
folder="$(realpath -m "${CARGO_TARGET_DIR:-../../target}")/ray"
bin="${GIRIH_RAY_BIN:-$folder/venv/bin}"
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$folder"
if [ ! -x "$bin/python" ]; then
    python3 -m venv "$folder/venv"
    "$bin/pip" install --quiet --disable-pip-version-check 'ray[data,serve]==2.60.0'
fi
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
rm -rf "$folder"/{prompts.jsonl,killed,whole}

"$bin/python" ray_batch.py "$folder/prompts.jsonl" "$folder/killed" --example 20000 &
batch=$!
until [ "$(find "$folder/killed" -name '*.jsonl' 2>/dev/null | wc -l)" -ge 3 ]; do
    kill -0 "$batch"
    sleep 0.2
done
kill -KILL "$batch"
wait "$batch" || true
sleep 2
done="$(find "$folder/killed" -name '*.jsonl' | wc -l)"
echo "$done of 20 parts were there when it was killed"
[ "$done" -lt 20 ]
"$bin/python" ray_batch.py "$folder/prompts.jsonl" "$folder/killed"
"$bin/python" ray_batch.py "$folder/prompts.jsonl" "$folder/whole"
rm -f "$folder"/killed/*.unfinished
diff -r "$folder/killed" "$folder/whole"

"$bin/python" ray_serve.py
