#!/usr/bin/env bash
# Fetches the JSON-Schema-Test-Suite, which is in the source archive of the Python package `jsonschema`
# on PyPI, into a folder: FOLDER/json. Needs pip.
set -euo pipefail
if [ $# -ne 1 ]; then
    echo "usage: $0 FOLDER" >&2
    exit 2
fi
mkdir -p "$1"
cd "$1"
python3 -m pip download --quiet --no-deps --no-binary :all: jsonschema==4.26.0
tar xzf jsonschema-4.26.0.tar.gz --strip-components=1 jsonschema-4.26.0/json
rm jsonschema-4.26.0.tar.gz
ls json/tests/draft7/type.json json/tests/draft2020-12/type.json
