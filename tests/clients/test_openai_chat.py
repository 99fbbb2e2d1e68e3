"""OpenAI's client: chat."""

import json

import pytest
from conftest import OPENING, STORIES
from openai import OpenAI

LENGTH = 24


def ask(client: OpenAI, content: str = OPENING, **settings):
    """A greedy reply to one message, if `settings` do not say otherwise."""
    settings = {"model": STORIES, "temperature": 0, "max_completion_tokens": LENGTH} | settings
    return client.chat.completions.create(messages=[{"role": "user", "content": content}], **settings)


def test_a_chat_continues_the_story_as_the_library_does(openai: OpenAI, story: dict):
    reply = ask(openai)
    [choice] = reply.choices
    assert reply.object == "chat.completion" and reply.model == STORIES and reply.id.startswith("chatcmpl-")
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content == story["text"]
    assert choice.message.tool_calls is None and choice.logprobs is None
    assert reply.usage.prompt_tokens == story["prompt_tokens"]
    assert reply.usage.completion_tokens == LENGTH
    assert reply.usage.total_tokens == story["prompt_tokens"] + LENGTH


def test_a_repeated_prompt_is_cached(openai: OpenAI):
    ask(openai)
    usage = ask(openai).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_system_and_earlier_turns_are_read(openai: OpenAI, story: dict):
    first, second = OPENING.split(", ", 1)
    turns = [{"role": "system", "content": first + ","}, {"role": "user", "content": second}]
    reply = openai.chat.completions.create(
        model=STORIES, messages=turns, temperature=0, max_completion_tokens=LENGTH
    )
    assert reply.choices[0].message.content == story["text"]
    content = [{"type": "text", "text": OPENING}]
    parts = openai.chat.completions.create(
        model=STORIES, messages=[{"role": "user", "content": content}], temperature=0, max_completion_tokens=LENGTH
    )
    assert parts.choices[0].message.content == story["text"]


def test_a_stream_has_the_bytes_of_the_whole_reply(openai: OpenAI, story: dict):
    chunks = list(ask(openai, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *chunks, last = chunks
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == story["text"]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == LENGTH
    assert last.usage.prompt_tokens == story["prompt_tokens"]


def test_a_stream_without_options_has_no_usage(openai: OpenAI):
    chunks = list(ask(openai, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_streaming_helper_collects_the_reply(openai: OpenAI, story: dict):
    messages = [{"role": "user", "content": OPENING}]
    # The helper treats a reply that was cut as an error.
    with openai.chat.completions.stream(
        model=STORIES, messages=messages, temperature=0, max_completion_tokens=LENGTH, stop="."
    ) as stream:
        kinds = {event.type for event in stream}
        reply = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert reply.choices[0].message.content == story["text"].split(".")[0]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_describe_each_token(openai: OpenAI, story: dict, stream: bool):
    reply = ask(openai, logprobs=True, top_logprobs=3, stream=stream)
    choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert len(tokens) == LENGTH
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == story["text"]
    for token in tokens:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].token == token.token  # the reply is greedy
        assert token.top_logprobs[0].logprob == token.logprob
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)


def test_logprobs_without_top_tokens(openai: OpenAI):
    tokens = ask(openai, logprobs=True).choices[0].logprobs.content
    assert len(tokens) == LENGTH and all(token.top_logprobs == [] for token in tokens)


def test_n_replies_have_seeds_that_follow_each_other(openai: OpenAI):
    reply = ask(openai, temperature=1, seed=5, n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) == 3
    alone = [ask(openai, temperature=1, seed=5 + number).choices[0].message.content for number in range(3)]
    assert texts == alone
    assert reply.usage.completion_tokens == 3 * LENGTH
    streamed = ["", "", ""]
    for chunk in ask(openai, temperature=1, seed=5, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_a_seed_repeats_a_reply(openai: OpenAI):
    texts = [ask(openai, temperature=1, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("stop", [".", [".", "zebra"]])
def test_a_reply_ends_before_a_stop_string(openai: OpenAI, story: dict, stop):
    choice = ask(openai, stop=stop).choices[0]
    assert "." in story["text"]
    assert (choice.message.content, choice.finish_reason) == (story["text"].split(".")[0], "stop")
    chunks = list(ask(openai, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_bias_rules_a_token_out(openai: OpenAI, story: dict):
    first = ask(openai, logprobs=True, max_completion_tokens=1).choices[0].logprobs.content[0].token
    banned = story["ids"][story["prompt_tokens"]]
    other = ask(openai, logit_bias={str(banned): -100}, logprobs=True, max_completion_tokens=1)
    assert other.choices[0].logprobs.content[0].token != first


def test_penalties_change_a_reply(openai: OpenAI):
    texts = {ask(openai, max_completion_tokens=100, frequency_penalty=value).choices[0].message.content for value in (0, 2)}
    assert len(texts) == 2


def test_the_list_of_models(openai: OpenAI):
    models = {model.id: model for model in openai.models.list()}
    assert STORIES in models and models[STORIES].object == "model"
    assert openai.models.retrieve(STORIES).id == STORIES


def test_a_raw_body_is_valid_json_with_the_headers_of_the_api(openai: OpenAI):
    raw = openai.chat.completions.with_raw_response.create(
        model=STORIES, messages=[{"role": "user", "content": OPENING}], max_completion_tokens=1
    )
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"]
    assert json.loads(raw.text)["object"] == "chat.completion"
