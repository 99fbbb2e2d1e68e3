"""Embeddings, by OpenAI's and Ollama's clients."""

import math

import ollama as ollama_client
import pytest
from conftest import ENCODER, STORIES, WORK, Server, library
from ollama import Client as Ollama
from openai import BadRequestError, OpenAI

TEXTS = ["Once upon a time", "Lily likes to play"]


@pytest.fixture
def openai(encoder: Server) -> OpenAI:
    """OpenAI's client."""
    return OpenAI(base_url=encoder.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def ollama(encoder: Server) -> Ollama:
    """Ollama's client."""
    return Ollama(host=encoder.url)


@pytest.fixture(scope="module")
def vectors(encoder: Server) -> list[list[float]]:
    """The library's vectors."""
    printed = library("embed", str(WORK / "models" / ENCODER), *TEXTS)
    return [embedding["embedding"] for embedding in printed["embeddings"]]


def close(left: list[float], right: list[float]) -> bool:
    return len(left) == len(right) and all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7), left, right))


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_vectors_are_those_of_the_library(openai: OpenAI, vectors: list, encoding: str | None):
    settings = {"encoding_format": encoding} if encoding else {}
    reply = openai.embeddings.create(model=ENCODER, input=TEXTS, **settings)
    assert [row.index for row in reply.data] == [0, 1]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0
    if encoding != "base64":
        assert all(close(row.embedding, vector) for row, vector in zip(reply.data, vectors, strict=True))
    one = openai.embeddings.create(model=ENCODER, input=TEXTS[1], encoding_format="float")
    assert close(one.data[0].embedding, vectors[1])


def test_ollama_embeds(ollama: Ollama, vectors: list):
    reply = ollama.embed(model=ENCODER, input=TEXTS)
    assert all(close(list(row), vector) for row, vector in zip(reply.embeddings, vectors, strict=True))


def test_a_decoder_is_refused_by_name(openai: OpenAI, ollama: Ollama):
    with pytest.raises(BadRequestError) as refused:
        openai.embeddings.create(model=STORIES, input=TEXTS)
    assert STORIES in refused.value.message and "encoder" in refused.value.message
    with pytest.raises(ollama_client.ResponseError) as error:
        ollama.embed(model=STORIES, input=TEXTS)
    assert error.value.status_code == 400 and "encoder" in error.value.error


def test_an_encoder_does_not_chat(openai: OpenAI):
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=ENCODER, messages=[{"role": "user", "content": "Hi"}])
    assert "encoder" in refused.value.message
