"""What Python adds to replies.

    python overhead.py [MODEL]                                # microseconds per token, beside the engine's own time
    python overhead.py MODEL --streams 1,8                    # the share of whole replies at once, beside the engine's own time
    python overhead.py MODEL --streams 1,8 --beside-server    # whole replies beside those of `girih serve`

`--streams` prints how much longer than in the engine a reply takes, and the share of the processors' time that Python's threads use:
together a bound on what Python costs, which holds on a busy machine too. `--beside-server` runs the wheel's program on the same model and
takes turns: the same replies over HTTP, by threads of Python, and by tasks of an event loop. It fails if one of them has another
text. Its times are those of a clock, so it needs a quiet machine.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import girih

PROMPT = "Once upon a time"


def settings(seed: int, tokens: int) -> girih.RequestSettings:
    return {"max_tokens": tokens, "min_tokens": tokens, "temperature": 1.0, "seed": seed}


def engine_beside_calls(model: girih.Model, tokens: int, rounds: int) -> None:
    """Prints the microseconds per token that a reply took beside those of the engine's statistics; three ways take turns."""

    def generate(seed: int) -> float:
        return model.generate(PROMPT, **settings(seed, tokens)).seconds

    def stream(seed: int) -> float:
        *_, last = model.stream(PROMPT, **settings(seed, tokens))
        return float(last.fields["seconds"])

    def astream(seed: int) -> float:
        async def read() -> float:
            events = [event async for event in await model.astream(PROMPT, **settings(seed, tokens))]
            return float(events[-1].fields["seconds"])

        return asyncio.run(read())

    def added(ask: Callable[[int], float], seed: int) -> float:
        begun = time.perf_counter()
        engine = ask(seed)
        return (time.perf_counter() - begun - engine) / tokens * 1e6

    ways = (generate, stream, astream)
    results = [[added(ask, seed) for ask in ways] for seed in range(rounds)]
    for ask, times in zip(ways, zip(*results, strict=True), strict=True):
        print(f"{ask.__name__}: {statistics.median(times):.1f} µs per token")


def beside_engine(name: str, streams: int, tokens: int, rounds: int) -> None:
    """Prints what Python adds to whole replies at once: medians of the rounds."""

    def by_thread(seed: int) -> tuple[float, float, float]:
        begun, cpu = time.perf_counter(), time.thread_time()
        engine = model.generate(PROMPT, **settings(seed, tokens)).seconds
        return time.perf_counter() - begun - engine, engine, time.thread_time() - cpu

    def by_threads(seeds: list[int]) -> list[tuple[float, float, float]]:
        return list(pool.map(by_thread, seeds))

    async def by_task(seed: int) -> tuple[float, float]:
        begun = time.perf_counter()
        engine = (await model.agenerate(PROMPT, **settings(seed, tokens))).seconds
        return time.perf_counter() - begun - engine, engine

    async def gathered(seeds: list[int]) -> list[tuple[float, float]]:
        return await asyncio.gather(*map(by_task, seeds))

    def by_tasks(seeds: list[int]) -> list[tuple[float, float, float]]:
        cpu = time.thread_time()
        times = asyncio.run(gathered(seeds))
        # One thread runs all tasks.
        each = (time.thread_time() - cpu) / streams
        return [(*pair, each) for pair in times]

    with girih.Model.open(name, context=512, sequences=streams) as model, ThreadPoolExecutor(streams) as pool:
        by_threads(list(range(streams)))  # warms up
        for ways in (by_threads, by_tasks):
            shares, used = [], []
            for turn in range(rounds):
                added, engine, cpu = map(sum, zip(*ways([turn * streams + stream for stream in range(streams)]), strict=True))
                shares.append(added / engine * 100)
                used.append(cpu / (engine / streams) / len(os.sched_getaffinity(0)) * 100)
            print(
                f"{streams} at once, {ways.__name__}: {statistics.median(shares):.3f} % longer than in the engine, "
                f"at most {max(shares):.3f} %; {statistics.median(used):.3f} % of the processors' time"
            )


@contextmanager
def served(name: str, *options: str) -> Iterator[int]:
    """The port of `girih serve` on a model, while it runs."""
    call = [girih.program(), "serve", name, "--port", "0", "--quiet", *options]
    server = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline().rsplit(":", 1)[1])
    finally:
        server.terminate()
        server.wait()


def by_http(port: int, tokens: int, seed: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"prompt": PROMPT, **settings(seed, tokens)})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    text: str = json.load(connection.getresponse())["choices"][0]["text"]
    return text


def beside_server(name: str, streams: int, tokens: int, rounds: int) -> None:
    """Prints how much longer replies take in Python than over HTTP: the median of the rounds, with the quartiles."""

    def in_threads(ask: Callable[[int], str]) -> Callable[[list[int]], list[str]]:
        return lambda seeds: list(pool.map(ask, seeds))

    async def gathered(seeds: list[int]) -> list[str]:
        replies = await asyncio.gather(*(model.agenerate(PROMPT, **settings(seed, tokens)) for seed in seeds))
        return [reply.text for reply in replies]

    with (
        served(name, "--context", "512", "--sequences", str(streams)) as port,
        girih.Model.open(name, context=512, sequences=streams) as model,
        ThreadPoolExecutor(streams) as pool,
    ):
        ways: dict[str, Callable[[list[int]], list[str]]] = {
            "HTTP": in_threads(lambda seed: by_http(port, tokens, seed)),
            "threads": in_threads(lambda seed: model.generate(PROMPT, **settings(seed, tokens)).text),
            "asyncio": lambda seeds: asyncio.run(gathered(seeds)),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(-1, rounds):  # the first one warms up
            seeds = [max(turn, 0) * streams + stream for stream in range(streams)]
            texts = {}
            for way in random.sample(sorted(ways), len(ways)):
                begun = time.perf_counter()
                texts[way] = ways[way](seeds)
                if turn >= 0:
                    times[way].append(time.perf_counter() - begun)
            assert texts["threads"] == texts["asyncio"] == texts["HTTP"], f"round {turn} has other texts"
    rate = streams * tokens / statistics.median(times["HTTP"])
    print(f"{streams} at once: HTTP {rate:.1f} tokens per second", end="")
    for way in ("threads", "asyncio"):
        ratios = [(one / other - 1) * 100 for one, other in zip(times[way], times["HTTP"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"; {way} {middle:+.2f} % ({low:+.2f} to {high:+.2f})", end="")
    print(f"; {rounds} rounds of {tokens} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="stories260k")
    parser.add_argument("--beside-server", action="store_true", help="compare with girih serve; needs --streams")
    parser.add_argument("--streams", help="numbers of replies at once, such as 1,8")
    parser.add_argument("--tokens", type=int, default=400, help="length of a reply")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.streams is not None:
        measure = beside_server if arguments.beside_server else beside_engine
        for streams in arguments.streams.split(","):
            measure(arguments.model, int(streams), arguments.tokens, arguments.rounds)
    else:
        with girih.Model.open(arguments.model, threads=1) as model:
            engine_beside_calls(model, arguments.tokens, arguments.rounds)


if __name__ == "__main__":
    main()
