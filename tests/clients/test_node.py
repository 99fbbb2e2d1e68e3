"""OpenAI's client for JavaScript, which Node's own runner tests."""

import os
import subprocess

from conftest import OPENING, STORIES, TOOLS, WORK, Server


def test_the_client_for_javascript(server: Server, story: dict):
    names = {"SERVER": server.url, "STORY": story["text"], "MODEL": STORIES, "TOOLS": TOOLS, "OPENING": OPENING}
    command = ["node", "--test", str(WORK / "openai.test.mjs")]
    done = subprocess.run(command, env=os.environ | names, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
