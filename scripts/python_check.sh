#!/usr/bin/env bash
# Builds the wheel, installs it into an environment of its own, and tests it: pytest, the examples of the documentation, types, the
# program. Needs Python 3.11 or later, and PyPI on the first run.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1

tests=crates/python/tests folder="$PWD/target/python"
bin="$folder/venv/bin"
mkdir -p "$folder"
if ! cmp -s $tests/requirements.txt "$folder/installed.txt"; then
    rm -rf "$folder/venv" "$folder/installed.txt"
    python3 -m venv "$folder/venv"
    "$bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps -r $tests/requirements.txt
    cp $tests/requirements.txt "$folder/installed.txt"
fi

rm -rf "$folder/wheel"
PATH="$bin:$PATH" scripts/python_wheel.sh "$folder/wheel" --quiet --compatibility linux
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$folder"/wheel/girih-*.whl

# From another folder, so that the installed package is tested.
repository="$PWD"
cd "$folder"
"$bin/python" -m pytest -q -p no:cacheprovider "$repository/$tests"
"$bin/python" -m pytest -q -p no:cacheprovider --doctest-modules --pyargs girih --ignore-glob='*__main__*'
"$bin/python" "$repository/crates/python/tests/run_documents.py" "$repository"/docs/python.md "$repository/crates/python/README.md"
cd "$repository/crates/python"
"$bin/mypy" --strict --cache-dir "$folder/mypy" python/girih tests
# The program of the wheel.
"$bin/girih" run stories260k "Once upon a time" -n 4 --quiet
"$bin/python" -m girih --version
