"""Anthropic's client."""

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError
from conftest import KEY, OPENING, STORIES, TOOLS, Server

LENGTH = 24
MESSAGES = [{"role": "user", "content": OPENING}]


def ask(client: Anthropic, **settings):
    """A message after the opening; the model is greedy by default."""
    settings = {"model": STORIES, "messages": MESSAGES, "max_tokens": LENGTH} | settings
    return client.messages.create(**settings)


def test_a_message_is_that_of_the_library(anthropic: Anthropic, story: dict):
    message = ask(anthropic)
    assert (message.type, message.role, message.model) == ("message", "assistant", STORIES)
    assert message.id.startswith("msg_")
    [block] = message.content
    assert (block.type, block.text) == ("text", story["text"])
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    read = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + read == story["prompt_tokens"]
    assert message.usage.output_tokens == LENGTH


def test_a_stream_has_the_events_of_the_api(anthropic: Anthropic, story: dict):
    events = [event for event in ask(anthropic, stream=True) if event.type != "ping"]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == story["text"]
    assert events[-2].delta.stop_reason == "max_tokens" and events[-2].usage.output_tokens == LENGTH
    with anthropic.messages.stream(model=STORIES, messages=MESSAGES, max_tokens=LENGTH) as stream:
        assert "".join(stream.text_stream) == story["text"]
        assert stream.get_final_message().stop_reason == "max_tokens"


def test_system_and_blocks_are_read(anthropic: Anthropic, story: dict):
    first, second = OPENING.split(", ", 1)
    for system in (first + ",", [{"type": "text", "text": first + ","}]):
        for content in (second, [{"type": "text", "text": second}]):
            message = ask(anthropic, system=system, messages=[{"role": "user", "content": content}])
            assert message.content[0].text == story["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_ends_the_message(anthropic: Anthropic, story: dict, stream: bool):
    message = ask(anthropic, stop_sequences=["zebra", "."], stream=stream)
    if stream:
        events = list(message)
        [end] = [event.delta for event in events if event.type == "message_delta"]
        text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    else:
        end, text = message, message.content[0].text
    assert (end.stop_reason, end.stop_sequence) == ("stop_sequence", ".")
    assert text == story["text"].split(".")[0]


WEATHER = {
    "name": "weather",
    "description": "The weather of a day.",
    "input_schema": {
        "type": "object",
        "properties": {"day": {"enum": ["today", "tomorrow"]}},
        "required": ["day"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_tool_is_used(anthropic: Anthropic, choice: dict):
    settings = {"model": TOOLS, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 100}
    message = ask(anthropic, **settings)
    [block] = message.content
    assert (block.type, block.name, message.stop_reason) == ("tool_use", "weather", "tool_use")
    assert block.id and block.input["day"] in ("today", "tomorrow")
    with anthropic.messages.stream(messages=MESSAGES, **settings) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == block.input and final.stop_reason == "tool_use"


def test_results_of_tools_are_read(anthropic: Anthropic):
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "It is sunny."}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {"day": "today"}}]},
        {"role": "user", "content": [result]},
    ]
    message = ask(anthropic, model=TOOLS, tools=[WEATHER], messages=messages)
    assert message.content[0].type == "text"


def test_tokens_are_counted_without_a_reply(anthropic: Anthropic, story: dict):
    count = anthropic.messages.count_tokens(model=STORIES, messages=MESSAGES)
    assert count.input_tokens == story["prompt_tokens"]


def test_errors_have_the_form_of_the_api(anthropic: Anthropic, keyed: Server):
    with pytest.raises(BadRequestError) as refused:
        ask(anthropic, extra_body={"temperature": -1})
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in refused.value.body["error"]["message"]
    with pytest.raises(BadRequestError) as refused:
        ask(anthropic, extra_body={"frobnicate": 1})
    assert "frobnicate" in refused.value.body["error"]["message"]
    with pytest.raises(NotFoundError) as missing:
        ask(anthropic, model="claude-99")
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(AuthenticationError) as wrong:
        ask(Anthropic(base_url=keyed.url, api_key="sk-wrong", max_retries=0))
    assert wrong.value.body["error"]["type"] == "authentication_error"
    assert ask(Anthropic(base_url=keyed.url, api_key=KEY, max_retries=0), max_tokens=2).content
