"""The program of the wheel, and what the package has it do."""

import http.client
import json
import subprocess
from pathlib import Path

import pytest

import girih
from girih._program import find_program

REPOSITORY = Path(__file__).parents[3]
PROMPT = "Once upon a time"

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package was installed without its program")


def test_the_same_seed_gives_the_same_bytes_in_the_program(model: girih.Model) -> None:
    call = [girih.program(), "run", "stories260k", PROMPT, "--temp", "1", "--seed", "7", "-n", "40", "--json"]
    told = json.loads(subprocess.check_output(call, text=True))
    reply = model.generate(PROMPT, temperature=1.0, seed=7, max_tokens=40)
    assert (told["text"], told["ids"][told["prompt_tokens"] :]) == (reply.text, reply.tokens)


def test_the_same_seed_gives_the_same_bytes_over_http(model: girih.Model) -> None:
    # The tests of the program compare it with the library in Rust and with the server.
    settings = {"temperature": 1.0, "seed": 7, "max_tokens": 40}
    call = [girih.program(), "serve", "stories260k", "--port", "0", "--threads", "1", "--quiet"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(server.stdout.readline().rsplit(":", 1)[1]), timeout=20)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, **settings}), headers)
        told = json.load(connection.getresponse())
        connection.close()
        server.terminate()
    assert told["choices"][0]["text"] == model.generate(PROMPT, temperature=1.0, seed=7, max_tokens=40).text


def test_verify_compares_with_transformers() -> None:
    fixture = REPOSITORY / "tests" / "fixtures" / "qwen3"
    verdict = girih.verify(fixture, golden=fixture / "golden.safetensors")
    assert verdict["passed"] is True and verdict["against"] == "f32" and verdict["prompts"]
    with pytest.raises(girih.GirihError, match="neither a folder"):
        girih.verify(fixture, golden=fixture / "config.json")


def test_a_template_that_never_ends_is_ended() -> None:
    # The program renders it in a process of its own, under limits.
    endless = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"
    tokenizer = girih.Tokenizer.open("stories260k", chat_template=endless)
    with pytest.raises(girih.GirihError):
        tokenizer.render([{"role": "user", "content": "Hello"}])
