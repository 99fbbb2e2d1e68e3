#!/usr/bin/env python3
"""Measure how long a server takes to switch between models, and whether requests are lost meanwhile.

    scripts/switch_models.py MODELS --memory 1500MiB [--girih target/release/girih] [--requests 200] [--mapped]

MODELS is a folder of models (`girih serve --models`), and MEMORY leaves room for some of them only. Asks for a short reply
of each model in turn, beside one client that asks for longer replies of the first model all the time. Prints the time
of the requests that loaded a model and of those that did not, and the largest memory of the server. Exits with 1 if a
request failed or replies of a model to the same prompt differ. `--mapped` maps packed weights instead of
reading them (`--packed-cache on --weights mmap`). Linux only; needs no packages.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def ask(address: str, model: str, tokens: int) -> tuple[float, str]:
    """Return the seconds of a reply, and its text."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begun = time.monotonic()
    with urllib.request.urlopen(request) as reply:
        text = json.load(reply)["choices"][0]["text"]
    return time.monotonic() - begun, text


def loaded(address: str) -> set[str]:
    """Return the names of the models that are in memory."""
    with urllib.request.urlopen(f"{address}/api/ps") as reply:
        return {model["name"] for model in json.load(reply)["models"]}


def memory(process: subprocess.Popen) -> int:
    """Return the largest resident memory of a process so far, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Ask for the models in turn."""
    parser = argparse.ArgumentParser(description="Measure the switches between models of a server.")
    parser.add_argument("models", type=Path)
    parser.add_argument("--memory", required=True)
    parser.add_argument("--girih", default="target/release/girih")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--mapped", action="store_true")
    args = parser.parse_args()
    more = ["--packed-cache", "on", "--weights", "mmap"] if args.mapped else []
    command = [args.girih, "serve", "--models", args.models, "--memory", args.memory, "--context", "512", "--port", "0"]
    server = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = next(word.rstrip("/.") for line in server.stdout for word in line.split() if word.startswith("http://"))
        failed = measure(server, address, args.requests)
    finally:
        server.terminate()
        server.wait()
    sys.exit(failed)


def measure(server: subprocess.Popen, address: str, requests: int) -> bool:
    """Ask and print; return whether something failed."""
    with urllib.request.urlopen(f"{address}/v1/models") as reply:
        names = [model["id"] for model in json.load(reply)["data"]]
    replies: dict[str, set[str]] = {name: set() for name in names}
    beside: list[Any] = []
    is_over = threading.Event()

    def ask_beside() -> None:
        while not is_over.is_set():
            try:
                beside.append(ask(address, names[0], 32)[1])
            except OSError as fault:
                beside.append(fault)

    client = threading.Thread(target=ask_beside)
    client.start()
    times: dict[bool, list[float]] = {True: [], False: []}
    faults = []
    for number in range(requests):
        name = names[number % len(names)]
        is_loaded = name in loaded(address)
        try:
            seconds, text = ask(address, name, 8)
            replies[name].add(text)
            times[is_loaded].append(seconds)
        except OSError as fault:
            faults.append(fault)
    is_over.set()
    client.join()
    faults += [reply for reply in beside if isinstance(reply, OSError)]
    for is_loaded, what in ((False, "loaded a model"), (True, "found it loaded")):
        if found := times[is_loaded]:
            figures = f"median {statistics.median(found):.2f} s, longest {max(found):.2f} s"
            print(f"{len(found)} requests {what}: {figures}")
    print(f"{len(beside)} replies beside them; {len(faults)} requests failed; at most {memory(server) / 2**20:.0f} MiB")
    differ = [name for name, texts in replies.items() if len(texts) > 1]
    if differ:
        print(f"replies differ: {', '.join(differ)}")
    return bool(faults or differ)


if __name__ == "__main__":
    main()
