"""OpenAI's client: completions."""

from conftest import OPENING, STORIES
from openai import OpenAI

LENGTH = 24


def ask(client: OpenAI, **settings):
    """A greedy completion of the opening, if `settings` do not say otherwise."""
    settings = {"model": STORIES, "prompt": OPENING, "temperature": 0, "max_tokens": LENGTH} | settings
    return client.completions.create(**settings)


def test_a_completion_is_that_of_the_library(openai: OpenAI, story: dict):
    reply = ask(openai)
    [choice] = reply.choices
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-")
    assert (choice.text, choice.finish_reason, choice.index) == (story["text"], "length", 0)
    assert reply.usage.prompt_tokens == story["prompt_tokens"]


def test_a_prompt_of_ids(openai: OpenAI, story: dict):
    prompt = story["ids"][: story["prompt_tokens"]]
    assert ask(openai, prompt=prompt).choices[0].text == story["text"]


def test_several_prompts(openai: OpenAI, story: dict):
    reply = ask(openai, prompt=["Lily", OPENING])
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[1].text == story["text"] != reply.choices[0].text


def test_a_stream_has_the_bytes_of_the_whole_reply(openai: OpenAI, story: dict):
    *chunks, last = ask(openai, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == story["text"]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.completion_tokens == LENGTH


def test_logprobs_have_the_old_form(openai: OpenAI, story: dict):
    logprobs = ask(openai, logprobs=2).choices[0].logprobs
    assert "".join(logprobs.tokens) == story["text"]
    assert len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(logprobs.top_logprobs) == LENGTH
    assert all(len(top) == 2 and max(top.values()) <= 0 for top in logprobs.top_logprobs)


def test_echo_repeats_the_prompt_or_is_refused_by_name(openai: OpenAI, story: dict):
    from openai import BadRequestError

    try:
        assert ask(openai, echo=True).choices[0].text == OPENING + story["text"]
    except BadRequestError as error:
        assert error.param == "echo"


def test_stop_seed_and_n(openai: OpenAI, story: dict):
    choice = ask(openai, stop=".").choices[0]
    assert (choice.text, choice.finish_reason) == (story["text"].split(".")[0], "stop")
    several = [choice.text for choice in ask(openai, temperature=1, seed=3, n=2).choices]
    assert several == [ask(openai, temperature=1, seed=seed).choices[0].text for seed in (3, 4)]
