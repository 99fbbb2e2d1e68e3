"""Servers for the tests of clients, and what the library says without them."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest
from anthropic import Anthropic
from ollama import Client as Ollama
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "clients"
GIRIH = os.environ["GIRIH"]
SCRIPTED = os.environ["SCRIPTED"]

STORIES = "stories260k"
"""The built-in model, whose template makes messages and replies one story."""

TOOLS = "stories-tools"
"""The same weights with a template that teaches a style of calls."""

ENCODER = "tiny-bert"
"""An encoder with random weights."""

SEEING = "tiny-seeing"
"""A model with random weights that reads images."""

SEEING_TEMPLATE = (
    "<s>{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
"""Writes messages whose content is a text or parts."""

KEY = "sk-a-key-of-the-tests"

TEMPLATE = "<s>{% if tools %}{% endif %}{# <tool_call> #}{{ messages[-1].content }}"
"""Reads tools without writing them, so that prompts stay short; its comment names the style."""


@dataclass
class Server:
    """A server that runs."""

    url: str
    process: subprocess.Popen

    def get(self, path: str, key: str | None = None) -> tuple[int, str]:
        """The status and the body of a GET."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        _, text = self.get("/metrics")
        lines = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE)
        assert lines, f"/metrics has no {name}"
        return sum(map(float, lines))


def serve(command: list[str], name: str, stdin: int | TextIO = subprocess.DEVNULL) -> Iterator[Server]:
    """Runs a server until its tests have ended; it must end with 0 when it is asked to."""
    log = WORK / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdin=stdin, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not (address := re.search(r"https?://[\w.\[\]:]+:\d+", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command} did not start: {log.read_text()}")
            time.sleep(0.05)
        yield Server(address.group(), process)
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
        assert "panicked" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()


def stories_with_template(name: str, template: str) -> Path:
    """A folder of the built-in model with another chat template."""
    folder = WORK / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "crates/girih/assets/stories260k", folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def encoder_with_tokenizer() -> Path:
    """A folder of an encoder with the tokenizer of the built-in model, which has as many tokens."""
    folder = WORK / "models" / ENCODER
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tests/fixtures/bert", folder)
    shutil.copy(ROOT / "crates/girih/assets/stories260k/tokenizer.json", folder)
    return folder


IMAGE_TOKENS = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
"""The tokens of an image in the committed model that reads images, by id from 509 on."""


def seeing_model() -> Path:
    """A folder of a model that reads images, with the tokenizer of the built-in one, whose last tokens become those of images."""
    folder = WORK / "models" / SEEING
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tests/fixtures/gemma3_vision", folder)
    tokenizer = json.loads((ROOT / "crates/girih/assets/stories260k/tokenizer.json").read_text())
    vocabulary = {token: id for token, id in tokenizer["model"]["vocab"].items() if id < 509}
    tokenizer["model"]["vocab"] = vocabulary | {token: id for id, token in enumerate(IMAGE_TOKENS, 509)}
    plain = tokenizer["added_tokens"][0] | {"special": True}
    tokenizer["added_tokens"] += [plain | {"id": id, "content": token} for id, token in enumerate(IMAGE_TOKENS, 509)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(SEEING_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def seeing() -> Iterator[Server]:
    """A server of a model that reads images, and of the built-in one, which does not."""
    yield from serve([GIRIH, "serve", str(seeing_model()), STORIES, "--port", "0"], "seeing")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of the built-in model, and of the same with tools."""
    tools = stories_with_template(TOOLS, TEMPLATE)
    yield from serve([GIRIH, "serve", STORIES, str(tools), "--port", "0", "--sequences", "16"], "server")


@pytest.fixture(scope="session")
def encoder() -> Iterator[Server]:
    """A server of the built-in model and of an encoder."""
    folder = encoder_with_tokenizer()
    yield from serve([GIRIH, "serve", STORIES, str(folder), "--port", "0"], "encoder")


@pytest.fixture(scope="session")
def keyed() -> Iterator[Server]:
    """A server that wants a key."""
    keys = WORK / "keys"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    yield from serve([GIRIH, "serve", STORIES, "--port", "0", "--api-keys", str(keys)], "keyed")


@pytest.fixture
def openai(server: Server) -> Iterator[OpenAI]:
    """OpenAI's client."""
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(server: Server) -> Iterator[Anthropic]:
    """Anthropic's client."""
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ollama(server: Server) -> Ollama:
    """Ollama's client."""
    return Ollama(host=server.url)


OPENING = "Once upon a time, there was a little girl named Lily."


def library(command: str, *arguments: str) -> dict:
    """What a command of girih prints as JSON."""
    done = subprocess.run([GIRIH, command, *arguments, "--json", "-q"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def story() -> dict:
    """The 24 tokens with which the library continues the opening."""
    return library("run", STORIES, OPENING, "--raw", "-n", "24")
