"""Ollama's client."""

import ollama as ollama_client
import pytest
from conftest import OPENING, STORIES, TOOLS
from ollama import Client as Ollama
from pydantic import BaseModel, ConfigDict

LENGTH = 24
MESSAGES = [{"role": "user", "content": OPENING}]
OPTIONS = {"temperature": 0, "num_predict": LENGTH}


def test_a_chat_is_that_of_the_library(ollama: Ollama, story: dict):
    reply = ollama.chat(model=STORIES, messages=MESSAGES, options=OPTIONS)
    assert (reply.message.role, reply.message.content) == ("assistant", story["text"])
    assert (reply.model, reply.done, reply.done_reason) == (STORIES, True, "length")
    assert reply.eval_count == LENGTH and reply.prompt_eval_count <= story["prompt_tokens"]
    assert reply.total_duration >= reply.eval_duration > 0 and reply.created_at
    parts = list(ollama.chat(model=STORIES, messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == story["text"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "length" and parts[-1].eval_count == LENGTH


def test_generate_continues_a_raw_prompt(ollama: Ollama, story: dict):
    reply = ollama.generate(model=STORIES, prompt=OPENING, raw=True, options=OPTIONS)
    assert (reply.response, reply.done) == (story["text"], True)
    parts = list(ollama.generate(model=STORIES, prompt=OPENING, options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts) == story["text"] and parts[-1].done


def test_options_are_read(ollama: Ollama, story: dict):
    reply = ollama.generate(model=STORIES, prompt=OPENING, options={**OPTIONS, "stop": ["."]})
    assert (reply.response, reply.done_reason) == (story["text"].split(".")[0], "stop")
    texts = [
        ollama.generate(model=STORIES, prompt=OPENING, options={**OPTIONS, "temperature": 1, "seed": seed}).response
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


class Answer(BaseModel):
    """What a reply is forced to be."""

    model_config = ConfigDict(extra="forbid")
    is_day: bool


def test_a_format_is_a_schema(ollama: Ollama):
    schema = Answer.model_json_schema()
    chat = ollama.chat(model=STORIES, messages=MESSAGES, format=schema)
    Answer.model_validate_json(chat.message.content)
    assert chat.done_reason == "stop"
    Answer.model_validate_json(ollama.generate(model=STORIES, prompt=OPENING, format=schema).response)


def test_models_are_listed_shown_and_running(ollama: Ollama):
    listed = {model.model: model for model in ollama.list().models}
    assert any(name.split(":")[0] == STORIES for name in listed)
    shown = ollama.show(STORIES)
    assert shown.details.family == "llama" and "completion" in shown.capabilities
    assert "tools" in ollama.show(TOOLS).capabilities
    ollama.generate(model=STORIES, prompt=OPENING, options=OPTIONS)
    assert any(model.model.split(":")[0] == STORIES for model in ollama.ps().models)


def test_errors_have_a_status(ollama: Ollama):
    with pytest.raises(ollama_client.ResponseError) as missing:
        ollama.chat(model="llama-99", messages=MESSAGES)
    assert missing.value.status_code == 404 and "llama-99" in missing.value.error
    with pytest.raises(ollama_client.ResponseError) as refused:
        ollama.chat(model=STORIES, messages=MESSAGES, options={"temperature": -9})
    assert refused.value.status_code == 400 and "temperature" in refused.value.error
    with pytest.raises(ollama_client.ResponseError) as refused:
        ollama.pull("llama-99")
    assert refused.value.status_code in (404, 405, 501)
