#!/usr/bin/env python3
"""Measures servers with OpenAI's API under load: speed and latencies of streams.

    serve_load.py compare MODEL.gguf --girih target/release/girih --peer SERVER [--streams 1,2,4,8,16]
    serve_load.py overload MODEL.gguf --girih target/release/girih

`compare` starts both servers in turns on the same file, `--rounds` times, and sends them the same
requests: prompts of random token ids, so that no prefix is shared, and greedy replies of a fixed
length, streamed. Each stream sends its next request when its reply has ended. It prints generated
tokens per second, and the median and the 99th percentile of the time to the first event and
between events, over all rounds.

`overload` first measures the capacity of girih with as many streams as it has places, then sends
requests at random times (a Poisson process) at 0.8 times and 4 times that rate. It prints the times to the first
event of the replies, and the status codes and times of the refusals.

Linux only; needs no packages.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

VOCABULARY = range(1000, 30000)
"""Ids of ordinary tokens in every vocabulary of the models that are compared."""


@dataclass
class Reply:
    """What a client saw of one request; times in seconds. The status is 0 if the connection broke."""

    status: int
    started: float
    events: list[float] = field(default_factory=list)
    tokens: int = 0
    ended: float = 0.0
    retry_after: bool = False

    @property
    def first(self) -> float:
        """The time from the request to the first event."""
        return self.events[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """The times between events."""
        return [later - earlier for earlier, later in zip(self.events, self.events[1:])]


async def body_lines(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    """The lines of a body."""
    if not is_chunked:
        async for line in reader:
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
    yield rest


async def ask(port: int, prompt: list[int], length: int) -> Reply:
    """Sends one request and reads its reply to the end."""
    reply = Reply(status=0, started=time.perf_counter())
    try:
        await exchange(reply, port, prompt, length)
    except (OSError, asyncio.IncompleteReadError, IndexError, ValueError):
        reply.status = 0
    reply.ended = time.perf_counter()
    if reply.status == 200 and not reply.events:
        raise SystemExit(f"port {port}: a reply without an event")
    return reply


async def exchange(reply: Reply, port: int, prompt: list[int], length: int) -> None:
    """Sends one request and fills in its reply. Without a name, a server takes its first model."""
    body = {"prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(head.encode() + data)
        reply.status = int((await reader.readline()).split()[1])
        is_chunked = False
        while line := (await reader.readline()).strip().lower():
            reply.retry_after |= line.startswith(b"retry-after:")
            is_chunked |= line.startswith(b"transfer-encoding:") and line.endswith(b"chunked")
        async for line in body_lines(reader, is_chunked):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(f"port {port}: {event['error']}")
            if event.get("choices"):
                reply.events.append(time.perf_counter())
            if usage := event.get("usage"):
                reply.tokens = usage["completion_tokens"]
    finally:
        writer.close()


def prompts(seed: int, count: int, length: int) -> list[list[int]]:
    """Prompts of random ids that share no prefix."""
    source = random.Random(seed)
    return [source.choices(VOCABULARY, k=length) for _ in range(count)]


async def closed_loop(port: int, streams: int, texts: list[list[int]], length: int) -> tuple[list[Reply], float]:
    """All replies to `texts`, and the seconds from the first request to the last reply."""
    waiting = iter(texts)
    replies = []

    async def stream() -> None:
        for text in waiting:
            replies.append(await ask(port, text, length))
            if replies[-1].status != 200:
                await asyncio.sleep(0.1)

    started = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(streams)))
    return replies, time.perf_counter() - started


async def open_loop(port: int, rate: float, texts: list[list[int]], length: int, seed: int) -> list[Reply]:
    """The replies to `texts`, sent at random times, `rate` per second on average."""
    source = random.Random(seed)
    tasks = []
    due = time.perf_counter()
    for text in texts:
        # A client that is late does not lower the rate.
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(ask(port, text, length)))
        due += source.expovariate(rate)
    return await asyncio.gather(*tasks)


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] if values else math.nan


def thread_seconds(process: int) -> dict[str, float]:
    """The CPU seconds of a process, by the names of its threads without their numbers."""
    seconds: dict[str, float] = {}
    whole = stat_seconds(Path(f"/proc/{process}/stat"))[1]
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            name, spent = stat_seconds(task / "stat")
        except OSError:
            continue  # the thread has just ended
        name = re.sub(r"[-_ ]*\d+$", "", name)
        seconds[name] = seconds.get(name, 0.0) + spent
    seconds["threads that ended"] = max(whole - sum(seconds.values()), 0.0)
    return seconds


def stat_seconds(file: Path) -> tuple[str, float]:
    """The name and the CPU seconds of a thread or a process."""
    name, rest = file.read_text().split("(", 1)[1].rsplit(")", 1)
    fields = rest.split()
    return name, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server that runs as long as the `with` block."""

    def __init__(self, command: list[str], port: int):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Server":
        for _ in range(1200):
            if self.process.poll() is not None:
                raise SystemExit(f"{self.process.args[0]} ended with status {self.process.returncode}")
            # A server may refuse requests while it loads its model.
            if asyncio.run(ask(self.port, [1000], 1)).status == 200:
                return self
            time.sleep(0.1)
        raise SystemExit(f"{self.process.args[0]} does not reply on port {self.port}")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each server, with the same number of places and the same context."""
    context = arguments.prompt + arguments.reply + 64
    port = str(arguments.port)
    places = str(arguments.places)
    girih = [arguments.girih, "serve", arguments.model, "--port", port, "--sequences", places, "-c", str(context)]
    servers = {"girih": girih + arguments.girih_option}
    if arguments.peer:
        total = str(context * arguments.places)
        peer = [arguments.peer, "-m", arguments.model, "--port", port, "-np", places, "-c", total, "-t", "2"]
        servers[Path(arguments.peer).stem] = peer + arguments.peer_option
    return servers


def compare(arguments: argparse.Namespace) -> None:
    """Prints one row for each server and number of streams."""
    servers = commands(arguments)
    counts = [int(count) for count in arguments.streams.split(",")]
    replies: dict[tuple[str, int], list[Reply]] = {}
    rates: dict[tuple[str, int], list[float]] = {}
    for turn in range(arguments.rounds):
        order = list(servers) if turn % 2 == 0 else list(servers)[::-1]
        for name in order:
            with Server(servers[name], arguments.port) as server:
                for count in counts:
                    texts = prompts(1000 * turn + count, max(2 * count, 8), arguments.prompt)
                    before = thread_seconds(server.process.pid)
                    seen, seconds = asyncio.run(closed_loop(arguments.port, count, texts, arguments.reply))
                    if bad := [reply.status for reply in seen if reply.status != 200]:
                        raise SystemExit(f"{name}, {count} streams: status codes {bad}")
                    if short := [reply.tokens for reply in seen if reply.tokens != arguments.reply]:
                        print(f"{name}, {count} streams: replies of {short} tokens", file=sys.stderr)
                    replies.setdefault((name, count), []).extend(seen)
                    rates.setdefault((name, count), []).append(sum(reply.tokens for reply in seen) / seconds)
                    after = thread_seconds(server.process.pid)
                    spent = {thread: max(after[thread] - before.get(thread, 0.0), 0.0) for thread in after}
                    whole = sum(spent.values())
                    shares = ", ".join(f"{thread} {used / whole:.1%}" for thread, used in spent.items() if used > 0)
                    print(f"round {turn + 1}, {name}, {count} streams: {shares}", file=sys.stderr)
    print("| streams | server | tokens/s | first event p50 | p99 | between events p50 | p99 |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for count in counts:
        for name in servers:
            seen = replies[name, count]
            firsts = [1000 * reply.first for reply in seen]
            gaps = [1000 * gap for reply in seen for gap in reply.gaps]
            rate = quantile(rates[name, count], 0.5)
            times = [quantile(values, share) for values in (firsts, gaps) for share in (0.5, 0.99)]
            print(f"| {count} | {name} | {rate:.1f} | " + " | ".join(f"{value:.0f} ms" for value in times) + " |")


def overload(arguments: argparse.Namespace) -> None:
    """Prints the times at 0.8 times and at 4 times the capacity."""
    with Server(commands(arguments)["girih"], arguments.port):
        texts = prompts(1, 4 * arguments.places, arguments.prompt)
        seen, seconds = asyncio.run(closed_loop(arguments.port, arguments.places, texts, arguments.reply))
        capacity = sum(reply.status == 200 for reply in seen) / seconds
        print(f"capacity: {capacity:.2f} requests/s")
        for factor in (0.8, 4.0):
            rate = factor * capacity
            count = math.ceil(arguments.seconds * rate)
            texts = prompts(round(10 * factor), count, arguments.prompt)
            seen = asyncio.run(open_loop(arguments.port, rate, texts, arguments.reply, 7))
            admitted = [1000 * reply.first for reply in seen if reply.status == 200]
            refused = [reply for reply in seen if reply.status != 200]
            times = [1000 * (reply.ended - reply.started) for reply in refused]
            codes = sorted({reply.status for reply in refused})
            without = sum(not reply.retry_after for reply in refused)
            print(
                f"{factor}x: {len(admitted)} admitted, first event p50 {quantile(admitted, 0.5):.0f} ms, "
                f"p99 {quantile(admitted, 0.99):.0f} ms; {len(refused)} refused with {codes}, "
                f"slowest {max(times, default=math.nan):.0f} ms, {without} without Retry-After"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", choices=["compare", "overload"])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--girih", default="target/release/girih")
    parser.add_argument("--peer", help="the program llama-server, or scripts/genai_server.py for OpenVINO GenAI")
    parser.add_argument("--streams", default="1,2,4,8,16")
    parser.add_argument("--places", type=int, default=8, help="sequences that a server runs at once (default 8)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt (default 128)")
    parser.add_argument("--reply", type=int, default=64, help="tokens of a reply (default 64)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="time in which requests are sent (default 30)")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--girih-option", action="append", default=[], metavar="=OPTION")
    parser.add_argument("--peer-option", action="append", default=[], metavar="=OPTION")
    arguments = parser.parse_args()
    {"compare": compare, "overload": overload}[arguments.test](arguments)


if __name__ == "__main__":
    main()
