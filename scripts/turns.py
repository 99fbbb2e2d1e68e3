#!/usr/bin/env python3
"""Compares how fast two builds of girih reply where the machine's speed drifts.

    turns.py FIRST SECOND MODEL.gguf [--rounds 3] [--gen-tokens 128] [--option=--kv=f16]

Both programs run `bench` at once, but one of them stands still while the other
runs, in turns of 150 ms: what neighbours take away they take from both. For the
same tokens the processor seconds of each are compared, which count only while
it runs (threads that wait watch, so they are two for each second of two
threads). Who is loaded second is at a disadvantage, so each round is two pairs,
either program first; its figure is their geometric mean.

Linux only; needs no packages.
"""

import argparse
import math
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

TURN = 0.15
"""Seconds of a turn: many for a second of drift, few for what a turn begins with, cold caches."""

LOAD = 1.5
"""Seconds that each program has to load the model before they take turns."""


def status(process: subprocess.Popen) -> tuple[bool, float]:
    """Whether a process has ended, and the processor seconds that it took. One that has ended keeps them until it is
    waited for."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return fields[0] == "Z", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pair(programs: list[str], options: list[str]) -> list[float]:
    """The processor seconds of each program."""
    running = []
    try:
        for program in programs:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            running.append(subprocess.Popen([program, "bench", *options], **quiet))
            time.sleep(LOAD)
            running[-1].send_signal(signal.SIGSTOP)
        turn = 0
        while not all(status(process)[0] for process in running):
            process = running[turn % len(running)]
            turn += 1
            if status(process)[0]:
                continue
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(TURN)
            os.kill(process.pid, signal.SIGSTOP)
        seconds = [status(process)[1] for process in running]
        if failed := [program for program, process in zip(programs, running) if process.wait()]:
            raise SystemExit(f"{failed[0]} bench {' '.join(options)} fails")
        return seconds
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--option", action="append", default=[], help="an option of both; may be given several times")
    arguments = parser.parse_args()
    options = [arguments.model, "-p", "0", "-n", str(arguments.gen_tokens), "-r", "2", "--no-limits", "--quiet"]
    options += arguments.option
    ratios = []
    for _ in range(arguments.rounds):
        first, second = pair([arguments.first, arguments.second], options)
        second_first, first_second = pair([arguments.second, arguments.first], options)
        ratios.append(math.sqrt(first / second * first_second / second_first))
        print(f"second is {ratios[-1]:.3f} times as fast", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})")


if __name__ == "__main__":
    main()
