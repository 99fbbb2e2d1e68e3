"""What Python adds to each token of a reply: `python overhead.py [MODEL]`. The engine's own time is that of its statistics; runs of
the three ways take turns.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable

import girih

TOKENS, ROUNDS = 400, 9

model = girih.Model.open(sys.argv[1] if len(sys.argv) > 1 else "stories260k", threads=1)


def settings(seed: int) -> girih.RequestSettings:
    return {"max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 1.0, "seed": seed}


def generate(seed: int) -> float:
    return model.generate("Once upon a time", **settings(seed)).seconds


def stream(seed: int) -> float:
    *_, last = model.stream("Once upon a time", **settings(seed))
    return float(last.fields["seconds"])


def astream(seed: int) -> float:
    async def read() -> float:
        events = [event async for event in await model.astream("Once upon a time", **settings(seed))]
        return float(events[-1].fields["seconds"])

    return asyncio.run(read())


def added(ask: Callable[[int], float], seed: int) -> float:
    """The microseconds per token that a reply took beside those of the engine."""
    begun = time.perf_counter()
    engine = ask(seed)
    return (time.perf_counter() - begun - engine) / TOKENS * 1e6


ways = (generate, stream, astream)
rounds = [[added(ask, seed) for ask in ways] for seed in range(ROUNDS)]
for ask, times in zip(ways, zip(*rounds, strict=True), strict=True):
    print(f"{ask.__name__}: {statistics.median(times):.1f} µs per token")
