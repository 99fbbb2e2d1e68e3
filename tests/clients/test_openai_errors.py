"""OpenAI's client: errors, time-outs, and many requests at once."""

import asyncio
import time

import pytest
from conftest import KEY, OPENING, STORIES, Server
from openai import (
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)

MESSAGES = [{"role": "user", "content": OPENING}]


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"extra_body": {"frobnicate": 1}}, "frobnicate"),
        ({"extra_body": {"stop": 5}}, "stop"),
        ({"extra_body": {"response_format": {"type": "poem"}}}, "response_format"),
    ],
)
def test_a_bad_parameter_is_named(openai: OpenAI, settings: dict, param: str):
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=STORIES, messages=MESSAGES, **settings)
    error = refused.value
    assert error.param and error.param.split(".")[0] == param
    assert error.type == "invalid_request_error" and error.code and error.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_before_the_stream(openai: OpenAI, stream: bool):
    messages = [{"role": "user", "content": "Lily " * 2000}]
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=STORIES, messages=messages, stream=stream)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "a"}], [{"role": "user"}]])
def test_bad_messages_are_refused(openai: OpenAI, messages: list):
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=STORIES, messages=messages)
    assert refused.value.param.startswith("messages")


def test_an_unknown_model_is_not_found(openai: OpenAI):
    with pytest.raises(NotFoundError) as missing:
        openai.chat.completions.create(model="gpt-99", messages=MESSAGES)
    assert missing.value.code == "model_not_found" and "gpt-99" in missing.value.message
    with pytest.raises(NotFoundError):
        openai.models.retrieve("gpt-99")


def test_an_unknown_path_is_not_found(openai: OpenAI):
    with pytest.raises(NotFoundError):
        openai.images.generate(prompt="a cat", model=STORIES)


def test_a_wrong_key_is_refused_and_the_right_one_is_not(keyed: Server):
    for key in ("sk-wrong", KEY[:-1], KEY + "x"):
        with pytest.raises(AuthenticationError) as refused:
            OpenAI(base_url=keyed.url + "/v1", api_key=key, max_retries=0).models.list()
        assert refused.value.code == "invalid_api_key"
    client = OpenAI(base_url=keyed.url + "/v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == [STORIES]
    assert client.chat.completions.create(model=STORIES, messages=MESSAGES, max_completion_tokens=2).choices
    assert keyed.get("/health")[0] == 200
    assert keyed.get("/metrics")[0] == 401 and keyed.get("/metrics", KEY)[0] == 200


def nothing_runs(server: Server) -> None:
    """Waits until no request runs or waits."""
    deadline = time.monotonic() + 30
    names = ("girih_requests_running", "girih_requests_waiting")
    while any(server.metric(name) for name in names):
        assert time.monotonic() < deadline, server.get("/metrics")[1]
        time.sleep(0.02)


LONG = {"model": STORIES, "prompt": [OPENING] * 9, "temperature": 1, "n": 8, "max_tokens": 480}
"""A request that takes seconds."""


def test_a_client_that_times_out_cancels_its_request(server: Server, openai: OpenAI):
    openai.completions.create(model=STORIES, prompt=OPENING, max_tokens=1)
    nothing_runs(server)
    before = server.metric("girih_generation_tokens_total")
    with pytest.raises(APITimeoutError):
        openai.with_options(timeout=0.15).completions.create(**LONG)
    nothing_runs(server)
    whole = len(LONG["prompt"]) * LONG["n"] * LONG["max_tokens"]
    assert server.metric("girih_generation_tokens_total") - before < whole / 2


def test_a_stream_that_is_closed_cancels_its_request(server: Server, openai: OpenAI):
    stream = openai.completions.create(**LONG, stream=True)
    assert next(iter(stream)).choices
    stream.close()
    nothing_runs(server)


def test_sixteen_async_requests_have_the_bytes_of_one(server: Server, openai: OpenAI):
    def settings(number: int) -> dict:
        return {"model": STORIES, "messages": MESSAGES, "temperature": 1, "seed": number, "max_completion_tokens": 40}

    async def streamed(client: AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(**settings(number), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def whole(client: AsyncOpenAI, number: int) -> str:
        return (await client.chat.completions.create(**settings(number))).choices[0].message.content

    async def all_at_once() -> list[str]:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            asks = (streamed(client, number) if number % 2 else whole(client, number) for number in range(16))
            return await asyncio.gather(*asks)

    alone = [openai.chat.completions.create(**settings(number)).choices[0].message.content for number in range(16)]
    assert asyncio.run(all_at_once()) == alone
    assert len(set(alone)) == 16
