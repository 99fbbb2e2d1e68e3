#!/usr/bin/env bash
# Starts real agents (by `girih launch AGENT --run`) and Python frameworks against a server whose model follows a script:
# agents.sh [NAME...].
# Each agent has to call its tool for commands, and to tell what the tool printed. Not part of .ci/run: they take
# 2 GB under target/agents. Needs Node 20, npm and PyPI on the first run, and release builds of girih and of
# the example `scripted` of girih-serve. The agents run in a network of their own that has only loopback, as far as the
# system allows it (unshare), and in an empty home.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder="$PWD/target/agents"
packages=(@openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197 opencode-ai@1.18.33 @qwen-code/qwen-code@0.15.10 @continuedev/cli@1.5.47)
if [ "$(cat "$folder/installed.txt" 2>/dev/null)" != "${packages[*]}" ]; then
    mkdir -p "$folder"
    npm install --prefix "$folder" --no-audit --no-fund --silent "${packages[@]}"
    echo "${packages[*]}" > "$folder/installed.txt"
fi
if [ ! -x "$folder/venv/bin/aider" ] && [ -z "${WITHOUT_AIDER:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check aider-chat || echo "aider cannot be installed"
fi
if [ ! -x "$folder/frameworks/bin/python" ]; then
    python3 -m venv "$folder/frameworks"
    "$folder/frameworks/bin/pip" install --quiet --disable-pip-version-check \
        instructor smolagents litellm langchain-openai langchain-anthropic langchain-ollama
fi

run=(python3 tests/clients/agents.py "$@")
if unshare --map-root-user --net true 2>/dev/null; then
    exec unshare --map-root-user --net sh -c 'ip link set lo up && exec "$@"' agents "${run[@]}"
fi
exec "${run[@]}"
