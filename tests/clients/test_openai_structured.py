"""OpenAI's client: replies that must be JSON or calls of tools, by the weights of the built-in model."""

import json
from typing import Literal

import pytest
from conftest import STORIES, TOOLS
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, ConfigDict, Field

MESSAGES = [{"role": "user", "content": "Once upon a time"}]


class Person(BaseModel):
    """What a reply is forced to be."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    age: int = Field(ge=3, le=12)
    toy: Literal["ball", "car"]


def tool(model: type[BaseModel]) -> dict:
    name = model.__name__.lower()
    return {"type": "function", "function": {"name": name, "parameters": model.model_json_schema()}}


class Play(BaseModel):
    """The arguments of another tool."""

    model_config = ConfigDict(extra="forbid")
    toy: Literal["ball", "car"]


SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True}}


@pytest.mark.parametrize("seed", range(3))
def test_a_reply_satisfies_a_schema(openai: OpenAI, seed: int):
    settings = {"model": STORIES, "messages": MESSAGES, "response_format": SCHEMA, "temperature": 1, "seed": seed}
    choice = openai.chat.completions.create(**settings).choices[0]
    assert choice.finish_reason == "stop"
    Person.model_validate_json(choice.message.content)
    chunks = list(openai.chat.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content


def test_parse_returns_the_type(openai: OpenAI):
    reply = openai.chat.completions.parse(model=STORIES, messages=MESSAGES, response_format=Person)
    assert isinstance(reply.choices[0].message.parsed, Person)


def test_the_streaming_helper_parses_the_type(openai: OpenAI):
    with openai.chat.completions.stream(model=STORIES, messages=MESSAGES, response_format=Person) as stream:
        reply = stream.get_final_completion()
    assert isinstance(reply.choices[0].message.parsed, Person)


def test_any_json_object(openai: OpenAI):
    choice = openai.chat.completions.create(
        model=STORIES, messages=MESSAGES, response_format={"type": "json_object"}, max_completion_tokens=200
    ).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.finish_reason == "length" and choice.message.content.lstrip().startswith("{")


def test_a_schema_that_cannot_be_read_is_refused(openai: OpenAI):
    bad = {"type": "json_schema", "json_schema": {"name": "bad", "schema": {"type": "colour"}, "strict": True}}
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=STORIES, messages=MESSAGES, response_format=bad)
    assert "'type'" in refused.value.message


def call(client: OpenAI, choice, **settings):
    """The choice of a reply that must be a call."""
    tools = [tool(Person), tool(Play)]
    settings = {"model": TOOLS, "messages": MESSAGES, "temperature": 1, "seed": 1, "tools": tools} | settings
    return client.chat.completions.create(tool_choice=choice, **settings)


@pytest.mark.parametrize("model", [Person, Play])
def test_a_named_tool_is_called(openai: OpenAI, model: type[BaseModel]):
    name = model.__name__.lower()
    choice = call(openai, {"type": "function", "function": {"name": name}}).choices[0]
    [made] = choice.message.tool_calls
    assert made.type == "function" and made.function.name == name and made.id
    assert choice.finish_reason in ("stop", "tool_calls") and not choice.message.content
    model.model_validate_json(made.function.arguments)


def test_a_required_call_is_of_any_tool(openai: OpenAI):
    choice = call(openai, "required").choices[0]
    assert choice.finish_reason == "tool_calls"
    models = {"person": Person, "play": Play}
    [made] = choice.message.tool_calls
    models[made.function.name].model_validate_json(made.function.arguments)


def test_a_streamed_call_has_the_same_bytes(openai: OpenAI):
    [whole] = call(openai, "required").choices[0].message.tool_calls
    name, arguments, ids = "", "", []
    chunks = list(call(openai, "required", stream=True))
    for chunk in chunks:
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.index == 0
            ids += [delta.id] if delta.id else []
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
    assert (name, arguments, len(ids)) == (whole.function.name, whole.function.arguments, 1)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_no_call_without_tools(openai: OpenAI):
    reply = call(openai, "none", max_completion_tokens=16)
    assert reply.choices[0].message.tool_calls is None and reply.choices[0].message.content


def test_a_tool_that_does_not_exist_is_refused(openai: OpenAI):
    with pytest.raises(BadRequestError) as refused:
        call(openai, {"type": "function", "function": {"name": "fly"}})
    assert "fly" in refused.value.message


def test_a_template_without_tools_refuses_them(openai: OpenAI):
    with pytest.raises(BadRequestError) as refused:
        call(openai, "required", model=STORIES)
    assert "template" in refused.value.message
