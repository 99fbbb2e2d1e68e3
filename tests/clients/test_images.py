"""Images, sent by the clients of OpenAI, Anthropic and Ollama."""

import base64

import openai as openai_client
import pytest
from anthropic import Anthropic
from conftest import ROOT, SEEING, STORIES, Server
from ollama import Client as Ollama
from openai import OpenAI

PATH = ROOT / "tests/images/rgb.png"
IMAGE = base64.b64encode(PATH.read_bytes()).decode()
URL = f"data:image/png;base64,{IMAGE}"
QUESTION = "Once upon a time"
LENGTH = 8


def chat(client: OpenAI, model: str, url: str) -> str:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": parts}]
    reply = client.chat.completions.create(model=model, messages=messages, max_tokens=LENGTH, temperature=0)
    return reply.choices[0].message.content


def test_all_clients_get_the_same_reply(seeing: Server):
    openai = OpenAI(base_url=seeing.url + "/v1", api_key="none", max_retries=0)
    text = chat(openai, SEEING, URL)
    parts = [{"type": "input_image", "image_url": URL, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    response = openai.responses.create(
        model=SEEING, input=[{"role": "user", "content": parts}], max_output_tokens=LENGTH, temperature=0, store=False
    )
    assert response.output_text == text
    anthropic = Anthropic(base_url=seeing.url, api_key="none", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}]
    reply = anthropic.messages.create(model=SEEING, messages=messages, max_tokens=LENGTH, extra_body={"temperature": 0})
    assert reply.content[0].text == text
    count = anthropic.messages.count_tokens(model=SEEING, messages=messages)
    assert count.input_tokens == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
    ollama = Ollama(host=seeing.url)
    options = {"temperature": 0, "num_predict": LENGTH}
    message = {"role": "user", "content": QUESTION, "images": [PATH]}
    assert ollama.chat(model=SEEING, messages=[message], options=options).message.content == text
    assert ollama.generate(model=SEEING, prompt=QUESTION, images=[IMAGE], options=options).response == text


def test_errors_name_the_image(seeing: Server):
    openai = OpenAI(base_url=seeing.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai_client.BadRequestError, match="reads no images") as caught:
        chat(openai, STORIES, URL)
    assert caught.value.param == "messages[0].content[0]"
    with pytest.raises(openai_client.BadRequestError, match="would have to be fetched"):
        chat(openai, SEEING, "https://example.org/a.png")
