"""Runs workers behind Dynamo's frontend, with file discovery, TCP and ZMQ: `python check.py MODEL [PROGRAM]`.

MODEL is a folder with weights, config.json and tokenizer.json; a chat template is written into a copy of it. Two workers must
give the replies that girih gives to the same token ids, whether greedy or with a seed, and end where they must. They are those of
`worker.py`, or with PROGRAM of `girih-dynamo`: then the frontend routes by their events, and must find cached prompts again.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import girih

PORT = 18200
PLANES = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def post(path: str, **body: Any) -> dict[str, Any]:
    text = json.dumps({"model": "stories", **body}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", text, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def wait_for_model() -> None:
    for _ in range(240):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models") as reply:
                if json.load(reply)["data"]:
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit("the frontend has found no model")


def check(model: girih.Model) -> None:
    prompt = model.tokenize("Once upon a time")
    asked: list[girih.RequestSettings] = [{"temperature": 0.0}] + [{"temperature": 0.8, "seed": seed} for seed in range(5)]
    for settings in asked:
        own = model.generate(prompt, max_tokens=40, **settings)
        reply = post("/v1/completions", prompt=prompt, max_tokens=40, **settings)
        assert reply["choices"][0]["text"] == own.text, (settings, reply, own.text)
        assert reply["usage"]["completion_tokens"] == 40
    reply = post("/v1/completions", prompt=prompt, max_tokens=40, temperature=0.0, stop=["Lily"])
    assert reply["choices"][0]["finish_reason"] == "stop" and "Lily" not in reply["choices"][0]["text"], reply
    reply = post("/v1/chat/completions", messages=[{"role": "user", "content": "One day"}], max_tokens=8, temperature=0.0)
    assert reply["usage"]["completion_tokens"] == 8, reply
    reply = post("/v1/completions", prompt=prompt, max_tokens=20, guided_choice=["yes", "no"])
    assert reply["choices"][0]["text"].strip() in ("yes", "no"), reply
    try:
        post("/v1/completions", prompt=prompt, max_tokens=4, n=2)
        raise SystemExit("two replies to a prompt were not refused")
    except urllib.error.HTTPError as error:
        assert error.code == 400, error
    print(f"{len(asked)} replies through Dynamo are girih's own; stop texts, chats, a choice and a refusal are right")


def applied_events() -> dict[str, float]:
    """The number of events that the router has applied, by outcome."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as reply:
        lines = [line for line in reply.read().decode().splitlines() if line.startswith("dynamo_component_kv_cache_events_applied{")]
    found: dict[str, float] = {}
    for line in lines:
        outcome = line.split('status="')[1].split('"')[0]
        found[outcome] = found.get(outcome, 0) + float(line.split()[-1])
    return {outcome: count for outcome, count in found.items() if count}


def check_events() -> None:
    """Prompts go where they are cached: with two workers in turns, every second one would not be."""
    for first in range(300, 306):
        prompt = [1, *(first + index % 150 for index in range(200))]
        found = []
        for _ in range(4):
            usage = post("/v1/completions", prompt=prompt, max_tokens=1, temperature=0.0)["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
            time.sleep(0.3)
        assert found[0] < 64 and min(found[1:]) >= 192, found
    events = applied_events()
    assert events.keys() == {"ok"} and events["ok"] >= 6, events
    print(f"prompts go to the worker that has them cached, by {events['ok']:.0f} events")


def check_settings() -> None:
    """What only `girih-dynamo` does, and what needs the same worker again."""
    prompt = [1, *range(300, 500)]
    reply = post("/v1/completions", prompt=prompt[:5], max_tokens=400, temperature=1.0, seed=1, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 400, reply
    cached = []
    for salt in ("a", "a", "b"):
        usage = post("/v1/completions", prompt=prompt, max_tokens=1, cache_salt=salt)["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
        time.sleep(0.3)
    assert cached == [False, True, False], cached
    print("an ignored end and salts are right")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(sys.argv[1], Path(folder) / "model", copy_function=shutil.copyfile)
        config = source / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
        environment = {**os.environ, "DYN_FILE_KV": str(Path(folder) / "discovery")}
        frontend = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(PORT)]
        program = sys.argv[2:3]
        frontend += ["--router-mode", "kv" if program else "round-robin"]
        worker = [*(program or [sys.executable, str(Path(__file__).with_name("worker.py"))]), str(source)]
        worker += ["--served-model-name", "stories", "--context", "512"]
        commands = [[sys.executable, *frontend], worker, worker]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for command in commands:
                started.append(subprocess.Popen([*command, *PLANES], env=environment))
            wait_for_model()
            with girih.Model.open(str(source)) as model:
                check(model)
            if program:
                check_events()
                check_settings()
            ended = [process.args for process in started if process.poll() is not None]
            assert not ended, f"these have ended: {ended}"
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()


if __name__ == "__main__":
    main()
