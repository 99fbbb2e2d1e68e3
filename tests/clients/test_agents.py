"""What agents and apps send: replies that are continued, old names of tools, budgets, and why nothing was cached."""

import anthropic
import ollama
import openai
import pytest
from conftest import Server


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def story(begun: str | None = None) -> list:
    messages = [{"role": "user", "content": "Once upon a time"}]
    return messages + ([{"role": "assistant", "content": begun}] if begun else [])


def test_a_last_message_is_continued(server: Server, client: openai.OpenAI):
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    reply = client.chat.completions.create(model="stories260k", messages=story(", there was"), max_tokens=8, extra_body=extra)
    expected = client.completions.create(model="stories260k", prompt="Once upon a time, there was", max_tokens=8)
    assert reply.choices[0].message.content == expected.choices[0].text
    message = anthropic.Anthropic(base_url=server.url, api_key="none").messages.create(
        model="stories260k", messages=story(", there was"), max_tokens=8
    )
    assert message.content[0].text == expected.choices[0].text
    chat = ollama.Client(host=server.url).chat(model="stories260k", messages=story(", there was"), options={"num_predict": 8})
    assert chat.message.content == expected.choices[0].text


def test_a_response_says_why_its_prompt_was_not_cached(server: Server, client: openai.OpenAI):
    raw = client.chat.completions.with_raw_response
    first = raw.create(model="stories260k", messages=[{"role": "user", "content": "Why was this not cached? " * 8}], max_tokens=1)
    again = raw.create(model="stories260k", messages=[{"role": "user", "content": "Why was this not cached? " * 8}], max_tokens=1)
    assert "reason=" in first.headers["x-girih-cache"]
    assert "reason=whole" in again.headers["x-girih-cache"]
    status, text = server.get("/v1/girih/cache")
    assert status == 200 and '"reason":"whole"' in text


def test_a_grammar_of_llama_cpp_shapes_a_reply(client: openai.OpenAI):
    extra = {"grammar": 'root ::= "yes" | "no" " "? "thanks"?'}
    reply = client.chat.completions.create(model="stories260k", messages=story(), max_tokens=20, extra_body=extra)
    assert reply.choices[0].message.content in ("yes", "no", "no ", "nothanks", "no thanks")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="stories260k", messages=story(), extra_body={"grammar": "root ::= <think>"})
    assert "line 1" in str(refused.value)


def test_a_result_without_its_call_is_refused_with_its_field(client: openai.OpenAI):
    messages = story() + [{"role": "tool", "tool_call_id": "c1", "content": "day"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="stories260k", messages=messages)
    assert refused.value.param == "messages[1].role"


def test_keep_alive_is_honoured(server: Server):
    client = ollama.Client(host=server.url)
    assert client.generate(model="stories260k", keep_alive="5m").done_reason == "load"
    assert client.ps().models[0].expires_at is not None
