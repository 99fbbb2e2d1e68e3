"""The program of the wheel, and what the package has it do."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import girih
from girih._program import find_program

REPOSITORY = Path(__file__).parents[3]
PROMPT = "Once upon a time"

pytestmark = pytest.mark.skipif(find_program() is None, reason="the package was installed without its program")


def script() -> str:
    """The script that installers put among those of Python."""
    return os.path.join(sysconfig.get_path("scripts"), "girih")


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that the script has started, and its port. It must end well when it is asked to."""
    call = [script(), "serve", *arguments, "--port", "0", "--quiet"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, int(server.stdout.readline().rsplit(":", 1)[1])
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 0


def post(port: int, route: str, body: dict[str, Any]) -> Any:
    """The answer to a request of the API of OpenAI."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", f"/v1/{route}", json.dumps(body), {"Content-Type": "application/json"})
    told = json.load(connection.getresponse())
    connection.close()
    return told


def runs(process: int) -> bool:
    """Whether a process has threads that have not ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
        return ") Z " not in stat or len(os.listdir(f"/proc/{process}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):  # It was reaped.
        return False


def test_the_same_seed_gives_the_same_bytes_in_the_program(model: girih.Model) -> None:
    call = [girih.program(), "run", "stories260k", PROMPT, "--temp", "1", "--seed", "7", "-n", "40", "--json"]
    told = json.loads(subprocess.check_output(call, text=True))
    reply = model.generate(PROMPT, temperature=1.0, seed=7, max_tokens=40)
    assert (told["text"], told["ids"][told["prompt_tokens"] :]) == (reply.text, reply.tokens)


def test_the_same_seed_gives_the_same_bytes_over_http(model: girih.Model) -> None:
    # The tests of the program compare it with the library in Rust and with the server.
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 40}
    with served("stories260k", "--threads", "1") as (_, port):
        told = post(port, "completions", {"prompt": PROMPT, **settings})
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


def test_the_script_becomes_the_program() -> None:
    assert os.path.dirname(girih.program()) == os.path.dirname(girih.__file__)
    for program in (script(), girih.program()):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        assert said == f"girih {girih.__version__}\n"
        refused = subprocess.run([program, "run", "--none"], capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "--none" in refused.stderr
    with served("stories260k") as (server, _):
        assert os.path.samefile(f"/proc/{server.pid}/exe", girih.program())


def test_a_reader_that_leaves_ends_the_program_with_a_code() -> None:
    # Not by a signal, as the program asks for.
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([script(), "--help"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert subprocess.run(f"{script()} --help | head -n 1", shell=True, check=True, capture_output=True).stdout


def test_a_confined_server_starts_its_worker_again(tmp_path: Path) -> None:
    fixture = REPOSITORY / "tests" / "fixtures" / "llama32_tied"
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(fixture / name, tmp_path / name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
    with served(str(tmp_path)) as (server, port):
        assert "\nSeccomp:\t2\n" in Path(f"/proc/{server.pid}/status").read_text()
        assert post(port, "chat/completions", body)["usage"]["completion_tokens"] == 4
        workers = [int(word) for file in Path(f"/proc/{server.pid}/task").glob("*/children") for word in file.read_text().split()]
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        while any(runs(worker) for worker in workers):
            time.sleep(0.01)
        assert post(port, "chat/completions", body)["usage"]["completion_tokens"] == 4


def test_a_launcher_without_its_library_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "girih"
    shutil.copy(girih.program(), copy)
    alone = subprocess.run([copy, "--version"], capture_output=True, text=True, check=False)
    assert alone.returncode == 1 and "_girih.abi3.so" in alone.stderr
    # A server's worker after `pip install --upgrade`.
    with copy.open("rb") as file:
        copy.unlink()
        call = [f"/proc/self/fd/{file.fileno()}", "--version"]
        replaced = subprocess.run(call, pass_fds=[file.fileno()], capture_output=True, text=True, check=False)
    assert replaced.returncode == 1 and "start the program again" in replaced.stderr
