"""A client that openapi-python-client generates from /openapi.json makes calls."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import STORIES, WORK, Server

NAME = "generated_client"
"""The package that is generated."""


@pytest.fixture(scope="module")
def generated(server: Server):
    """The package, made without a warning: nothing of the description was left out."""
    description = WORK / "openapi.json"
    description.write_text(server.get("/openapi.json")[1])
    program = Path(sys.executable).with_name("openapi-python-client")
    (WORK / "openapi.yaml").write_text("post_hooks: []\n")
    command = [program, "generate", "--path", description, "--output-path", WORK / NAME, "--meta", "none"]
    command += ["--config", WORK / "openapi.yaml", "--overwrite", "--fail-on-warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(WORK))
    yield importlib.import_module(NAME)
    sys.path.remove(str(WORK))


def call(generated, server: Server, api: str, body: str | None = None, **fields):
    """The reply of a route, as its generated type."""
    route = importlib.import_module(f"{NAME}.api.{api}")
    models = importlib.import_module(f"{NAME}.models")
    more = {"body": getattr(models, body).from_dict(fields)} if body else {}
    return route.sync(client=generated.Client(base_url=server.url), **more)


def test_a_generated_client_makes_calls(generated, server: Server):
    assert call(generated, server, "openai.get_v1_models").data[0].id == STORIES
    messages = [{"role": "user", "content": "Once"}]
    chat = {"model": STORIES, "messages": messages, "max_tokens": 4}
    reply = call(generated, server, "openai.post_v1_chat_completions", "ChatRequest", **chat)
    assert reply.choices[0].message.content and reply.usage.completion_tokens == 4
    message = call(generated, server, "anthropic.post_v1_messages", "MessagesRequest", **chat)
    assert message.content[0].text == reply.choices[0].message.content
    options = {"options": {"num_predict": 4}, "stream": False}
    chat = call(generated, server, "ollama.post_api_chat", "OllamaChatRequest", model=STORIES, messages=messages, **options)
    assert chat.message.content == reply.choices[0].message.content
    refused = call(generated, server, "openai.post_v1_chat_completions", "ChatRequest", model=STORIES, messages=[], n=9)
    assert refused.error.param == "n"
