"""OpenAI's client: responses."""

import pytest
from conftest import OPENING, STORIES, TOOLS
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, ConfigDict

LENGTH = 24


class Answer(BaseModel):
    """What a response is forced to be."""

    model_config = ConfigDict(extra="forbid")
    is_day: bool


def ask(client: OpenAI, **settings):
    """A greedy response to the opening, if `settings` do not say otherwise."""
    settings = {"model": STORIES, "input": OPENING, "temperature": 0, "max_output_tokens": LENGTH} | settings
    return client.responses.create(**settings)


def test_a_response_is_that_of_the_library(openai: OpenAI, story: dict):
    response = ask(openai)
    assert response.object == "response" and response.id.startswith("resp_")
    assert response.output_text == story["text"]
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.input_tokens == story["prompt_tokens"]
    assert response.usage.output_tokens == LENGTH
    [message] = response.output
    assert (message.type, message.role, message.content[0].type) == ("message", "assistant", "output_text")


def test_messages_and_instructions(openai: OpenAI, story: dict):
    first, second = OPENING.split(", ", 1)
    response = ask(openai, instructions=first + ",", input=[{"role": "user", "content": second}])
    assert response.output_text == story["text"]


def test_a_stream_has_the_events_of_the_api(openai: OpenAI, story: dict):
    events = list(ask(openai, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    order = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert [kind for index, kind in enumerate(kinds) if kind not in kinds[:index]][2:-1] == order
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == story["text"]
    assert events[-1].response.output_text == story["text"]


def test_the_streaming_helper_collects_the_response(openai: OpenAI):
    # The helper treats a response that was cut as an error.
    with openai.responses.stream(model=STORIES, input=OPENING, text_format=Answer) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        response = stream.get_final_response()
    assert (response.status, response.output_text) == ("completed", text)
    assert response.output_parsed == Answer.model_validate_json(text)


def test_parse_returns_the_type(openai: OpenAI):
    response = openai.responses.parse(model=STORIES, input=OPENING, text_format=Answer)
    assert isinstance(response.output_parsed, Answer) and response.status == "completed"


def test_a_forced_call(openai: OpenAI):
    tool = {"type": "function", "name": "answer", "parameters": Answer.model_json_schema(), "strict": False}
    response = ask(openai, model=TOOLS, tools=[tool], tool_choice="required", max_output_tokens=100)
    [call] = response.output
    assert (call.type, call.name, response.status) == ("function_call", "answer", "completed")
    assert call.call_id
    Answer.model_validate_json(call.arguments)


def test_what_needs_stored_responses_is_refused(openai: OpenAI):
    with pytest.raises(BadRequestError) as refused:
        ask(openai, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(BadRequestError) as refused:
        ask(openai, store=True)
    assert refused.value.param == "store"
    with pytest.raises(NotFoundError):
        ask(openai, model="gpt-99")
