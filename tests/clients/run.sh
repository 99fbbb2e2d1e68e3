#!/usr/bin/env bash
# Runs official clients, unmodified, against the server: run.sh [GIRIH [SCRIPTED]]. The programs are a
# release build of girih and of the example `scripted` of girih-serve. Needs Python 3.11, Node 20, and
# PyPI and npm on the first run.
set -euo pipefail
cd "$(dirname "$0")/../.."

GIRIH="$(realpath "${1:-target/release/girih}")"
SCRIPTED="$(realpath "${2:-target/release/examples/scripted}")"
export GIRIH SCRIPTED
export PYTHONDONTWRITEBYTECODE=1

folder="$PWD/target/clients"
mkdir -p "$folder"
if ! cmp -s tests/clients/requirements.txt "$folder/installed.txt"; then
    rm -rf "$folder/venv" "$folder/installed.txt"
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$folder/installed.txt"
fi
cp tests/clients/package.json tests/clients/package-lock.json "$folder"
cp tests/clients/*.mjs "$folder" # beside node_modules, where Node looks for packages
npm ci --prefix "$folder" --no-audit --no-fund --silent

exec "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider tests/clients "${@:3}"
