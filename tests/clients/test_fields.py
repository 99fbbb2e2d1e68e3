"""Replies field by field against the official API descriptions, which the official Python clients are made from.

Each field that a client's model requires is there, with a value of its type; no reply has a field that the model does not
declare, except those of `EXTENSIONS`.
"""

import json
import types
import typing
import urllib.request
from typing import Any

import anthropic.types
import ollama
import openai.types
import openai.types.chat
import openai.types.responses
import pydantic
import pytest
from conftest import STORIES, TOOLS, Server

EXTENSIONS = {
    # OpenAI's server has them; its Python client does not declare them.
    "Response.store",
    "ResponseFunctionCallArgumentsDoneEvent.name",
    # Thinking, and errors of one of several choices, as vLLM, DeepSeek and llama-server have them.
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDelta.reasoning_content",
    # Contexts, and what models read, as vLLM and OpenRouter have them.
    "Model.max_model_len",
    "Model.context_length",
    "Model.architecture",
    # Ollama's server has them; its Python client does not declare them.
    "ListResponse.Model.name",
    "ProcessResponse.Model.context_length",
    "Logprob.bytes",
    "TokenLogprob.bytes",
}
"""Fields beyond the official descriptions."""

NULLS = {"CompletionChoice.finish_reason"}
"""Fields that OpenAI's server sends as null in all but the last piece of a stream; its client declares no null."""


def faults(kind: Any, value: Any, path: str) -> list[str]:
    """What of `value` differs from the type `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return []
    if origin is typing.Annotated:
        return faults(arguments[0], value, path)
    if isinstance(kind, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return faults(kind.__value__, value, path)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in arguments if value is None or one is not type(None)]
        return min((faults(one, value, path) for one in kinds), key=len)
    if origin is typing.Literal:
        return [] if value in arguments else [f"{path} is {value!r}, not one of {arguments}"]
    if origin in (list, typing.Sequence) or getattr(origin, "__name__", "") in ("Sequence", "Iterable"):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [fault for at, item in enumerate(value) for fault in faults(arguments[0], item, f"{path}[{at}]")]
    if origin in (dict, typing.Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, dict):
            return [f"{path} is no object"]
        return [fault for key, item in value.items() for fault in faults(arguments[1], item, f"{path}.{key}")]
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return model_faults(kind, value, path)
    if kind is None or kind is type(None):
        return [] if value is None else [f"{path} is not null"]
    simple = {str: str, bool: bool, int: int, float: (int, float)}
    if kind in simple:
        is_right = isinstance(value, simple[kind]) and (kind is bool or not isinstance(value, bool))
        return [] if is_right else [f"{path} is {value!r}, not {kind.__name__}"]
    # Others, such as dates, are what pydantic reads.
    try:
        pydantic.TypeAdapter(kind).validate_python(value)
    except pydantic.ValidationError:
        return [f"{path} is {value!r}, not {kind}"]
    return []


def model_faults(model: type[pydantic.BaseModel], value: Any, path: str) -> list[str]:
    """What of an object differs from a client's model."""
    if not isinstance(value, dict):
        return [f"{path} is no object"]
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    found = [f"{path}.{name} is missing" for name, field in fields.items() if field.is_required() and name not in value]
    for name, item in value.items():
        if item is None and f"{model.__qualname__}.{name}" in NULLS:
            continue
        if name in fields:
            found += faults(fields[name].annotation, item, f"{path}.{name}")
        elif f"{model.__qualname__}.{name}" not in EXTENSIONS:
            found.append(f"{path}.{name} is not declared by {model.__qualname__}")
    return found


def exchange(server: Server, path: str, body: dict | None = None, headers: dict | None = None) -> str:
    """The body of a reply."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read().decode()


def events(text: str) -> list[dict]:
    """The objects of a stream of events, or of lines of JSON."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{")))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check(kind: Any, values: list[Any], what: str):
    assert values, f"{what}: nothing was sent"
    found = [fault for at, value in enumerate(values) for fault in faults(kind, value, f"{what}[{at}]")]
    assert not found, "\n".join(sorted(set(found)))


MESSAGES = [{"role": "user", "content": "Once upon a time"}]
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]}}
TOOL = {"type": "function", "function": FUNCTION}
CHAT = {"model": STORIES, "messages": MESSAGES, "max_tokens": 6}
CALL = {"model": TOOLS, "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "n": 2, **LOGPROBS}, CALL, {**CHAT, "response_format": {"type": "json_object"}}])
def test_chat_completions(server: Server, body: dict):
    check(openai.types.chat.ChatCompletion, [json.loads(exchange(server, "/v1/chat/completions", body))], "chat")
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(exchange(server, "/v1/chat/completions", stream))
    check(openai.types.chat.ChatCompletionChunk, chunks, "chunk")


def test_completions_embeddings_and_models(server: Server, encoder: Server):
    body = {"model": STORIES, "prompt": "Once", "max_tokens": 4, "logprobs": 2}
    check(openai.types.Completion, [json.loads(exchange(server, "/v1/completions", body))], "completion")
    check(openai.types.Completion, events(exchange(server, "/v1/completions", {**body, "stream": True})), "chunk")
    models = json.loads(exchange(server, "/v1/models"))
    assert set(models) == {"object", "data"} and models["object"] == "list"
    check(openai.types.Model, models["data"], "model")
    check(openai.types.Model, [json.loads(exchange(server, f"/v1/models/{STORIES}"))], "model")
    body = {"model": "tiny-bert", "input": ["a cat", "a dog"]}
    reply = json.loads(exchange(encoder, "/v1/embeddings", body))
    check(openai.types.CreateEmbeddingResponse, [reply], "embeddings")


RESPONSE = {"model": STORIES, "input": "Once upon a time", "max_output_tokens": 20}
RESPONSE_CALL = {**RESPONSE, "model": TOOLS, "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}


@pytest.mark.parametrize("body", [RESPONSE, {**RESPONSE_CALL, "max_output_tokens": 60}])
def test_responses(server: Server, body: dict):
    check(openai.types.responses.Response, [json.loads(exchange(server, "/v1/responses", body))], "response")
    stream = events(exchange(server, "/v1/responses", {**body, "stream": True}))
    check(openai.types.responses.ResponseStreamEvent, stream, "event")


MESSAGE = {"model": STORIES, "messages": MESSAGES, "max_tokens": 20}
MESSAGE_TOOL = {"name": "look", "input_schema": FUNCTION["parameters"]}
MESSAGE_CALL = {**MESSAGE, "model": TOOLS, "tools": [MESSAGE_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 60}
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize("body", [MESSAGE, {**MESSAGE, "stop_sequences": [" "]}, MESSAGE_CALL])
def test_messages(server: Server, body: dict):
    check(anthropic.types.Message, [json.loads(exchange(server, "/v1/messages", body, VERSION))], "message")
    stream = events(exchange(server, "/v1/messages", {**body, "stream": True}, VERSION))
    check(anthropic.types.RawMessageStreamEvent, [event for event in stream if event["type"] != "ping"], "event")


def test_other_routes_of_anthropic(server: Server):
    count = {"model": STORIES, "messages": MESSAGES}
    tokens = json.loads(exchange(server, "/v1/messages/count_tokens", count, VERSION))
    check(anthropic.types.MessageTokensCount, [tokens], "count")
    models = json.loads(exchange(server, "/v1/models", None, VERSION))
    assert set(models) == {"data", "has_more", "first_id", "last_id"}
    check(anthropic.types.ModelInfo, models["data"], "model")


def test_ollama(server: Server, encoder: Server):
    options = {"num_predict": 6}
    chat = {"model": STORIES, "messages": MESSAGES, "options": options, "logprobs": True, "top_logprobs": 2}
    check(ollama.ChatResponse, events(exchange(server, "/api/chat", chat)), "chat")
    call = {"model": TOOLS, "messages": MESSAGES, "tools": [TOOL], "stream": False, "options": options}
    check(ollama.ChatResponse, [json.loads(exchange(server, "/api/chat", call))], "chat")
    generate = {"model": STORIES, "prompt": "Once", "options": options}
    check(ollama.GenerateResponse, events(exchange(server, "/api/generate", generate)), "generate")
    check(ollama.ListResponse, [json.loads(exchange(server, "/api/tags"))], "tags")
    check(ollama.ProcessResponse, [json.loads(exchange(server, "/api/ps"))], "ps")
    check(ollama.ShowResponse, [json.loads(exchange(server, "/api/show", {"model": STORIES}))], "show")
    body = {"model": "tiny-bert", "input": ["a cat"]}
    check(ollama.EmbedResponse, [json.loads(exchange(encoder, "/api/embed", body))], "embed")


def test_a_difference_is_found():
    """The test of the test: what is missing, undeclared and of another type."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    message = {"role": "assistant", "content": "a", "refusal": None}
    right = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    right["choices"] = [{"index": 0, "finish_reason": "stop", "logprobs": None, "message": message}]
    kind = openai.types.chat.ChatCompletion
    assert faults(kind, right, "a") == []
    wrong = {**right, "created": "1", "more": 1, "object": "chat"}
    del wrong["id"]
    assert len(faults(kind, wrong, "a")) == 4
    assert faults(kind, {**right, "choices": [{**right["choices"][0], "finish_reason": "end"}]}, "a")
