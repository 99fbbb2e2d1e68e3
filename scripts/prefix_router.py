#!/usr/bin/env python3
"""A small router that sends requests to the server that has most of their prompt cached.

    prefix_router.py serve --port 8000 http://127.0.0.1:8081,tcp://127.0.0.1:5557,tcp://127.0.0.1:5558 ...
    prefix_router.py check target/release/girih [--requests 500] [--dynamo PYTHON]
    prefix_router.py throughput target/release/girih MODEL [--rounds 4]

`serve` stands in front of servers that were started with --kv-events and --kv-events-replay: each argument has the server,
its events and its replay socket. It passes on POST /v1/completions and /v1/chat/completions. A request whose server fails before
the first byte of its reply goes to another one; a reply that has begun ends where its server failed.
Servers must have no keys, adapters or images: blocks are compared by their tokens alone.

`check` starts two servers on the built-in model and sends them requests whose prompts share beginnings, once in turns
(round robin) and once by prefix; then once more by prefix while one server is killed in the middle. It fails if a reply is
lost, doubled or differs from the reply of a server alone, or if routing by prefix finds fewer cached tokens. With `--dynamo`, the
same once more, but NVIDIA Dynamo's own indexer, which PYTHON has (`ai-dynamo`), reads the events and says where a prompt is cached.

`throughput` starts two servers of MODEL with a thread each, and sends them prompts that share nothing, in turns directly and through
a router that is a process of its own and routes by prefix. It prints the ratio of the tokens per second, and the router's share of two cores.

Needs pyzmq and msgspec. Linux only.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

import msgspec
import zmq

BLOCK = 64
"""Tokens of a block of girih's KV cache."""

PATHS = ("/v1/completions", "/v1/chat/completions")


class BlockStored(msgspec.Struct, tag=True):
    """The fields of vLLM's event (vllm/distributed/kv_events.py), those without a default included."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


BATCH = msgspec.msgpack.Decoder(EventBatch)


class Index:
    """The blocks that a server has cached, by a key of the router's own: a hash of all tokens up to a block's end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: dict[int | bytes, int] = {}
        self.held: Counter[int] = Counter()

    def apply(self, batch: EventBatch) -> None:
        with self.lock:
            for event in batch.events:
                match event:
                    case BlockStored():
                        self.store(event)
                    case BlockRemoved():
                        for block in event.block_hashes:
                            if (key := self.keys.pop(block, None)) is not None:
                                self.held[key] -= 1
                    case AllBlocksCleared():
                        self.keys.clear()
                        self.held.clear()

    def store(self, event: BlockStored) -> None:
        parent = 0
        if event.parent_block_hash is not None:
            if event.parent_block_hash not in self.keys:
                return
            parent = self.keys[event.parent_block_hash]
        for at, block in enumerate(event.block_hashes):
            parent = hash((parent, tuple(event.token_ids[at * BLOCK : (at + 1) * BLOCK])))
            self.keys[block] = parent
            self.held[parent] += 1

    def cached(self, tokens: list[int]) -> int:
        """The number of first tokens that are cached in whole blocks."""
        key, length = 0, 0
        with self.lock:
            for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
                key = hash((key, tuple(tokens[start : start + BLOCK])))
                if self.held[key] <= 0:
                    break
                length = start + BLOCK
        return length

    def clear(self) -> None:
        with self.lock:
            self.keys.clear()
            self.held.clear()


class DynamoIndex:
    """What NVIDIA Dynamo's indexer knows of a server: it reads, decodes and hashes the events itself."""

    def __init__(self, url: str, instance: int, events: str, replay: str) -> None:
        self.url, self.instance, self.events, self.replay = url, instance, events, replay
        self.register()

    def register(self) -> None:
        listener = {"endpoint": self.events, "replay_endpoint": self.replay, "block_size": BLOCK}
        self.post("/register", {"instance_id": self.instance, "model_name": "girih", **listener})

    def cached(self, tokens: list[int]) -> int:
        scores = self.post("/query", {"token_ids": tokens, "model_name": "girih"})["scores"]
        return scores.get(str(self.instance), {}).get("0", 0)

    def clear(self) -> None:
        self.post("/unregister", {"instance_id": self.instance, "model_name": "girih"})
        self.register()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)


class Replica:
    """A server, what it has cached, and how many requests it runs."""

    def __init__(self, url: str, events: str, replay: str, index: DynamoIndex | None = None) -> None:
        self.url, self.events, self.replay = url, events, replay
        self.running, self.is_up, self.next = 0, True, 0
        self.index = index or Index()
        if isinstance(self.index, Index):
            threading.Thread(target=self.subscribe, args=(self.index,), daemon=True).start()

    def subscribe(self, index: Index) -> None:
        """Reads events, and asks for those that were missed."""
        context = zmq.Context.instance()
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        socket.connect(self.events)
        self.catch_up(index, context, 0)
        while True:
            _, number, payload = socket.recv_multipart()
            found = int.from_bytes(number, "big")
            if found < self.next:
                if found > 0:
                    continue
                # Its numbers begin again: it was started again.
                index.clear()
            elif found > self.next and not self.catch_up(index, context, found):
                # What was missed is not kept any more, so nothing is known.
                index.clear()
            if found >= self.next or found == 0:
                index.apply(BATCH.decode(payload))
                self.next = found + 1

    def catch_up(self, index: Index, context: zmq.Context, before: int) -> bool:
        """Asks for the messages from the next one on; whether all up to `before` came."""
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.replay)
        try:
            socket.send_multipart([b"", self.next.to_bytes(8, "big")])
            while True:
                _, _, number, payload = socket.recv_multipart()
                if not payload:
                    return self.next >= before
                found = int.from_bytes(number, "big")
                if found != self.next:
                    return False
                index.apply(BATCH.decode(payload))
                self.next = found + 1
        except zmq.Again:
            return False
        finally:
            socket.close()

    def connection(self, timeout: float = 60) -> http.client.HTTPConnection:
        place = urlparse(self.url)
        return http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)

    def post(self, path: str, body: bytes) -> http.client.HTTPResponse:
        connection = self.connection()
        connection.request("POST", path, body, {"content-type": "application/json"})
        return connection.getresponse()

    def is_ready(self) -> bool:
        try:
            connection = self.connection(5)
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False


class Router:
    """Chooses a server for each request: `prefix`, or `turns`."""

    def __init__(self, replicas: list[Replica], policy: str) -> None:
        self.replicas, self.policy = replicas, policy
        self.lock, self.turn = threading.Lock(), 0

    def up(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.is_up]

    def mark_down(self, replica: Replica) -> None:
        replica.is_up = False
        replica.index.clear()
        threading.Thread(target=self.watch, args=(replica,), daemon=True).start()

    def watch(self, replica: Replica) -> None:
        while not replica.is_ready():
            time.sleep(0.5)
        replica.is_up = True

    def tokens(self, path: str, body: bytes) -> list[int]:
        """The prompt as one of the servers reads it; empty if none can tell."""
        for replica in self.up():
            try:
                reply = replica.post(path + "/render", body)
                rendered = json.loads(reply.read())
                if reply.status != 200:
                    return []
                return (rendered[0] if isinstance(rendered, list) else rendered)["token_ids"]
            except (OSError, http.client.HTTPException):
                self.mark_down(replica)
        return []

    def choose(self, tokens: list[int]) -> Replica | None:
        """The server with the longest cached beginning; of several, the one with the fewest requests."""
        with self.lock:
            up = self.up()
            if not up:
                return None
            self.turn += 1
            if self.policy == "turns":
                chosen = up[self.turn % len(up)]
            else:
                chosen = max(up, key=lambda it: (it.index.cached(tokens), -it.running, -self.replicas.index(it)))
            chosen.running += 1
            return chosen

    def answer(self, path: str, body: bytes, handler: BaseHTTPRequestHandler) -> None:
        tokens = self.tokens(path, body) if self.policy == "prefix" else []
        while (replica := self.choose(tokens)) is not None:
            try:
                if (begun := self.begin(replica, path, body)) is not None:
                    return self.pass_on(*begun, handler)
                self.mark_down(replica)
            finally:
                replica.running -= 1
        handler.send_error(503)

    @staticmethod
    def begin(replica: Replica, path: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes] | None:
        """A reply and its first bytes; `None` if the server fails before them."""
        try:
            reply = replica.post(path, body)
            first = reply.read1(65536)
            return (reply, first) if first else None
        except (OSError, http.client.HTTPException):
            return None

    @staticmethod
    def pass_on(reply: http.client.HTTPResponse, part: bytes, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(reply.status)
        handler.send_header("content-type", reply.getheader("content-type", "application/json"))
        handler.send_header("connection", "close")
        handler.end_headers()
        while part:
            handler.wfile.write(part)
            part = reply.read1(65536)


def served(router: Router, port: int) -> ThreadingHTTPServer:
    """A server of the router that listens already."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.close_connection = True
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path not in PATHS:
                return self.send_error(404)
            try:
                router.answer(self.path, body, self)
            except (OSError, http.client.HTTPException):
                pass  # The reply has begun; its end is missing, and the client sees that.

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


# The check.

GROUPS = 20
"""Prompts that share a beginning of 192 tokens belong to a group. Two servers have room for all beginnings, one has not."""


def prompt(number: int) -> list[int]:
    group = random.Random(number).randrange(GROUPS)
    shared, own = random.Random(1000 + group), random.Random(2000 + number)
    return [1] + [shared.randrange(300, 500) for _ in range(191)] + [own.randrange(300, 500) for _ in range(20)]


def start(girih: str, model: str = "stories260k") -> tuple[subprocess.Popen[str], list[str]]:
    """A server that is ready, and its addresses: those of HTTP, of events, and of their replay."""
    ports = [free_port() for _ in range(3)]
    events = [f"tcp://127.0.0.1:{port}" for port in ports[1:]]
    command = [girih, "serve", model, "--port", str(ports[0]), "--threads", "1", "--context", "512"]
    command += ["--sequences", "4", "--kv-events", events[0], "--kv-events-replay", events[1]]
    return listening(command), [f"http://127.0.0.1:{ports[0]}", *events]


def listening(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "listening" not in (line := process.stdout.readline()):
        if not line:
            raise SystemExit(f"{command[0]} did not start")
    return process


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ask(port: int, prompt: list[int], max_tokens: int = 8) -> tuple[str, dict[str, Any]] | None:
    """A reply's text and its usage; `None` if the reply was cut."""
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit(f"status {reply.status}: {reply.read()!r}")
    try:
        lines = reply.read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return None
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if not data or data[-1] != "[DONE]":
        return None
    chunks = [json.loads(text) for text in data[:-1]]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    return text, next(chunk["usage"] for chunk in chunks if chunk.get("usage"))


def start_indexer(python: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [python, "-m", "dynamo.indexer", "--port", str(port), "--threads", "1"]
    process, url = subprocess.Popen(command, stdout=subprocess.DEVNULL), f"http://127.0.0.1:{port}"
    for _ in range(100):
        try:
            with urllib.request.urlopen(url + "/health"):
                return process, url
        except OSError:
            time.sleep(0.2)
    raise SystemExit("Dynamo's indexer did not start")


def round_of(girih: str, policy: str, requests: int, is_killed: bool, dynamo: str | None) -> tuple[list[str | None], int]:
    """The texts of all replies, and the tokens of the prompts that were cached."""
    started = [start(girih) for _ in range(2)]
    indexer, url = start_indexer(dynamo) if dynamo else (None, "")

    def index(number: int, addresses: list[str]) -> DynamoIndex | None:
        return DynamoIndex(url, number, *addresses[1:]) if dynamo else None

    replicas = [Replica(*addresses, index(number, addresses)) for number, (_, addresses) in enumerate(started)]
    router = Router(replicas, policy)
    server = served(router, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = threading.Semaphore(0)

    def one(number: int) -> tuple[str, dict[str, Any]] | None:
        try:
            return ask(server.server_port, prompt(number))
        finally:
            done.release()

    try:
        with ThreadPoolExecutor(4) as clients:
            replies = [clients.submit(one, number) for number in range(requests)]
            if is_killed:
                for _ in range(requests // 2):
                    done.acquire()
                started[1][0].kill()
        found = [reply.result() for reply in replies]
        cached = sum(reply[1]["prompt_tokens_details"]["cached_tokens"] for reply in found if reply)
        return [reply and reply[0] for reply in found], cached
    finally:
        server.shutdown()
        for process in [process for process, _ in started] + [indexer] * bool(indexer):
            process.kill()
            process.wait()


def check(girih: str, requests: int, dynamo: str | None) -> None:
    tokens = sum(len(prompt(number)) for number in range(requests))
    cached = {}
    expected: list[str] = []
    rounds = [("round robin", "turns", False, None), ("prefix", "prefix", False, None), ("prefix, one killed", "prefix", True, None)]
    if dynamo:
        rounds += [("prefix by Dynamo's indexer", "prefix", False, dynamo), ("the same, one killed", "prefix", True, dynamo)]
    for name, policy, is_killed, indexer in rounds:
        begun = time.monotonic()
        texts, cached[name] = round_of(girih, policy, requests, is_killed, indexer)
        cut = texts.count(None)
        expected = expected or [text or "" for text in texts]
        wrong = sum(text is not None and text != right for text, right in zip(texts, expected, strict=True))
        print(
            f"{name}: {requests} requests, {requests - cut} whole replies, {cut} cut after their first byte, {wrong} differ; "
            f"{100 * cached[name] / tokens:.1f} % of {tokens} tokens of prompts cached, {time.monotonic() - begun:.1f} s"
        )
        # At most those that four clients were reading from the killed server.
        if wrong or cut > (4 if is_killed else 0):
            raise SystemExit("replies were lost or differ")
    for name in ["prefix", *[name for name in cached if name.endswith("indexer")]]:
        if cached[name] <= cached["round robin"]:
            raise SystemExit(f"routing by {name} found no more cached tokens")


STREAMS = 8
"""Requests that run at once: as many as two servers have sequences."""


def throughput(girih: str, model: str, rounds: int) -> None:
    started = [start(girih, model) for _ in range(2)]
    port = free_port()
    router = [sys.executable, __file__, "serve", "--port", str(port), *(",".join(addresses) for _, addresses in started)]
    processes = [server for server, _ in started] + [listening(router)]
    ways = {"direct": [urlparse(addresses[0]).port or 0 for _, addresses in started], "router": [port]}
    try:
        speed: dict[str, list[float]] = {name: [] for name in ways}
        shares = []
        for number in range(-1, rounds):
            # The first round warms up.
            for name in sorted(ways, reverse=number % 2 == 1):
                before = cpu_seconds(processes[2].pid)
                found, seconds = tokens_per_second(ways[name], seed=number)
                share = (cpu_seconds(processes[2].pid) - before) / seconds / 2
                print(f"round {number}, {name}: {found:.1f} tokens/s; the router took {100 * share:.2f} % of two cores", flush=True)
                if number >= 0:
                    speed[name].append(found)
                    shares += [share] if name == "router" else []
        ratios = [through / direct for through, direct in zip(speed["router"], speed["direct"], strict=True)]
        print(
            f"medians: {statistics.median(speed['direct']):.1f} tokens/s directly, {statistics.median(speed['router']):.1f} through the router; "
            f"ratios {' '.join(f'{ratio:.3f}' for ratio in ratios)}, median {statistics.median(ratios):.3f}; "
            f"the router took {100 * statistics.median(shares):.2f} % of two cores"
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tokens_per_second(ports: list[int], seed: int) -> tuple[float, float]:
    """The tokens per second of the replies to three requests of each stream, and the seconds that they took."""

    def stream(number: int) -> int:
        source, tokens = random.Random(f"{ports} {seed} {number}"), 0
        for _ in range(3):
            reply = ask(ports[number % len(ports)], [source.randrange(300, 500) for _ in range(128)], max_tokens=64)
            if reply is None:
                raise SystemExit("a reply was cut")
            tokens += reply[1]["completion_tokens"]
        return tokens

    begun = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as clients:
        tokens = sum(clients.map(stream, range(STREAMS)))
    seconds = time.monotonic() - begun
    return tokens / seconds, seconds


def cpu_seconds(process: int) -> float:
    """The processor time of a process and its threads."""
    with open(f"/proc/{process}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve")
    serving.add_argument("replicas", nargs="+", metavar="URL,EVENTS,REPLAY")
    serving.add_argument("--port", type=int, default=8000)
    serving.add_argument("--policy", choices=["prefix", "turns"], default="prefix")
    checking = commands.add_parser("check")
    checking.add_argument("girih")
    checking.add_argument("--requests", type=int, default=500)
    checking.add_argument("--dynamo", metavar="PYTHON")
    measuring = commands.add_parser("throughput")
    measuring.add_argument("girih")
    measuring.add_argument("model")
    measuring.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    if args.command == "check":
        return check(args.girih, args.requests, args.dynamo)
    if args.command == "throughput":
        return throughput(args.girih, args.model, args.rounds)
    router = Router([Replica(*replica.split(",")) for replica in args.replicas], args.policy)
    server = served(router, args.port)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
