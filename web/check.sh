#!/usr/bin/env bash
# Checks the chat page: builds it, compares the bytes with crates/serve/page, and tests it in a browser.
# It needs Node 20.19 or newer, npm, and Chromium (CHROMIUM, by default /usr/bin/chromium).
#
#   web/check.sh                          # with a scripted model
#   GIRIH_BIN=target/release/girih web/check.sh   # and the built-in model, served by girih
#   web/check.sh --update                 # builds into crates/serve/page, without a test
#
# PICTURES=DIR keeps screenshots.
set -euo pipefail
if [ -n "${GIRIH_BIN:-}" ]; then
    GIRIH_BIN="$(realpath "$GIRIH_BIN")"
    export GIRIH_BIN
fi
cd "$(dirname "$0")"

npm ci --no-audit --no-fund
if [ "${1:-}" = --update ]; then
    exec npm run build
fi

built="$(mktemp -d)"
trap 'rm -rf "$built"' EXIT
npm run build -- --outDir "$built"
if ! diff -rq "$built" ../crates/serve/page; then
    echo "crates/serve/page is not what web/ builds: run web/check.sh --update and commit it" >&2
    exit 1
fi
npm test
