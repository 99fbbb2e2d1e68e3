"""Ends: Ctrl-C, leaving a `with`, cancelled tasks, dropped models, event loops."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import girih

PROMPT = "Once upon a time"


def test_leaving_a_with_cancels_the_reply(model: girih.Model) -> None:
    with model.stream(PROMPT, max_tokens=400) as stream:
        next(stream)
    assert list(stream) == []
    # The place is free again: four more run at once.
    assert model.generate(PROMPT, max_tokens=3).tokens


def test_a_closed_model_is_refused_and_its_replies_end() -> None:
    model = girih.Model.open("stories260k")
    stream = model.stream(PROMPT, max_tokens=400)
    next(stream)
    model.close()
    assert list(stream)[-1].stop in (girih.Stop("cancelled"), girih.Stop("length"))
    with pytest.raises(girih.Refused, match="the model is closed"):
        model.generate(PROMPT)
    model.close()


def test_a_reply_is_cancelled_by_another_thread(model: girih.Model) -> None:
    stream = model.stream(PROMPT, max_tokens=400)
    threading.Timer(0.01, stream.cancel).start()
    last = list(stream)[-1]
    assert last.stop in (girih.Stop("cancelled"), girih.Stop("length"))


#: A program that waits for a reply until Ctrl-C. The interpreter backend is slow, so the reply cannot end before.
INTERRUPTED = """
import sys, girih
model = girih.Model.open("stories260k", backend="interpreter")
print("ready", flush=True)
try:
    while True:
        if sys.argv[1] == "generate":
            model.generate("Once upon a time", max_tokens=500)
        else:
            for event in model.stream("Once upon a time", max_tokens=500): pass
except KeyboardInterrupt:
    print(model.generate("Once", max_tokens=1).stop.kind)
"""


@pytest.mark.parametrize("call", ["generate", "stream"])
def test_ctrl_c_ends_a_reply(call: str) -> None:
    program = subprocess.Popen([sys.executable, "-c", INTERRUPTED, call], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, _ = program.communicate(timeout=20)
    assert (out, program.returncode) == ("length\n", 0)
    assert time.monotonic() - begun < 10


def test_an_event_loop_goes_on_while_a_reply_is_awaited(model: girih.Model) -> None:
    async def count() -> tuple[int, list[str]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        replies = await asyncio.gather(
            *(model.agenerate(PROMPT, temperature=1.0, seed=seed, max_tokens=100) for seed in range(8))
        )
        ticking.cancel()
        return ticks, [reply.text for reply in replies]

    ticks, texts = asyncio.run(count())
    assert ticks > 2
    assert texts == [model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=100).text for seed in range(8)]


def test_async_events_are_the_events(model: girih.Model) -> None:
    async def events() -> list[girih.Event]:
        async with await model.astream(PROMPT, max_tokens=12) as stream:
            return [event async for event in stream]

    found, expected = asyncio.run(events()), list(model.stream(PROMPT, max_tokens=12))
    assert [event.text for event in found] == [event.text for event in expected]
    assert found[-1].stop == expected[-1].stop


@pytest.mark.parametrize("streams", [False, True])
def test_a_cancelled_task_cancels_its_request(streams: bool) -> None:
    async def cancelled(model: girih.Model) -> None:
        begins = asyncio.Event()

        async def read() -> None:
            if streams:
                async for _ in await model.astream(PROMPT, max_tokens=500):
                    begins.set()
            else:
                await model.agenerate(PROMPT, max_tokens=500)

        task = asyncio.create_task(read())
        # A fast machine has the whole reply after 0.2 s.
        await (begins.wait() if streams else asyncio.sleep(0.01))
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # One request runs at once, so this one begins only when the other has ended.
        begun = time.monotonic()
        await model.agenerate("Once", max_tokens=1)
        assert time.monotonic() - begun < 5

    with girih.Model.open("stories260k", backend="interpreter") as model:
        asyncio.run(cancelled(model))


def test_errors_reach_an_event_loop(model: girih.Model) -> None:
    with pytest.raises(girih.TooLong):
        asyncio.run(model.agenerate(PROMPT, max_tokens=100_000))


def test_progress_is_told_on_the_caller_s_thread(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total, threading.current_thread().name))

    with girih.Model.open("stories260k", progress=progress) as model:
        assert model.notes() == []
    assert calls[-1][0] == calls[-1][1] > 500_000
    assert {name for _, _, name in calls} == {threading.current_thread().name}

    def stops(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        girih.Model.open("stories260k", progress=stops)


def resident() -> int:
    """The memory of this process in KiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def test_opened_and_dropped_models_leave_nothing() -> None:
    def round_of(count: int) -> None:
        for _ in range(count):
            girih.Model.open("stories260k", context=64, threads=1).generate("Once", max_tokens=1)
        gc.collect()

    round_of(30)
    before, files = resident(), len(list(Path("/proc/self/fd").iterdir()))
    # `.ci/long python` sets 10,000.
    round_of(int(os.environ.get("GIRIH_OPENED_MODELS", "100")))
    # Allocators keep some; each model has more than one MiB.
    assert resident() - before < 20_000
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
    assert threading.active_count() < 10


def test_importing_is_quick() -> None:
    code = "import time; t = time.perf_counter(); import girih; print(time.perf_counter() - t)"
    seconds = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))
    assert seconds < 1
