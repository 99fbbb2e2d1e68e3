#!/usr/bin/env python3
"""Compares the speed of two builds of girih on a machine whose speed drifts.

    turns.py FIRST SECOND MODEL.gguf [--rounds 15] [--tests pp512,tg64] [--option=--kv=f16]

Both programs run `bench` at the same time, but signals let only one of them run
at once, in time slices of 150 ms, so that other load slows both equally. The
script compares the CPU seconds that both need for the same number of tokens; a
stopped program uses none. (Idle threads spin, so two threads use two CPU seconds
per second.) The program that loads second is at a disadvantage. So a round has
two pairs, with each program first once, and its result is the geometric mean of
the two ratios. The last line of a test is the geometric mean of all rounds with
its 95 % confidence interval (Student's t of the logarithms).

Linux only; needs no packages.
"""

import argparse
import math
import os
import re
import signal
import statistics
import subprocess
import time
from pathlib import Path

TURN = 0.15
"""Seconds of a time slice: short compared with the drift, long compared with warming the caches at its start."""

LOAD = 1.5
"""Seconds that each program gets to load the model before the time slices begin."""

STUDENT_T = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09]
"""The 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom."""


def status(process: subprocess.Popen) -> tuple[bool, float]:
    """Whether a process has ended, and its CPU seconds. A process that has ended keeps them until it is waited for."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return fields[0] == "Z", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pair(programs: list[str], options: list[str]) -> list[float]:
    """The CPU seconds of each program."""
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
            raise SystemExit(f"{failed[0]} bench {' '.join(options)} failed")
        return seconds
    finally:
        for process in running:
            process.kill()
            process.wait()


def lengths(test: str) -> list[str]:
    """The options of `bench` for a test such as pp512 or tg64."""
    if not (found := re.fullmatch(r"(pp|tg)(\d+)", test)):
        raise SystemExit(f"{test} is not a test: write pp or tg and a number of tokens, such as pp512")
    return ["-p", found[2], "-n", "0"] if found[1] == "pp" else ["-p", "0", "-n", found[2]]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean and its 95 % confidence interval."""
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logarithms)
    if len(ratios) < 2:
        return math.exp(mean), 0.0, math.inf
    t = STUDENT_T[min(len(ratios) - 2, len(STUDENT_T) - 1)]
    half = t * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tests", default="pp512,tg64")
    parser.add_argument("--repetitions", type=int, default=2, help="repetitions of a test within one start")
    parser.add_argument("--option", action="append", default=[], help="option of `bench` for both programs; may be repeated")
    arguments = parser.parse_args()
    for test in arguments.tests.split(","):
        options = [arguments.model, *lengths(test), "-r", str(arguments.repetitions), "--no-limits", "--quiet"]
        options += arguments.option
        ratios = []
        for _ in range(arguments.rounds):
            first, second = pair([arguments.first, arguments.second], options)
            second_first, first_second = pair([arguments.second, arguments.first], options)
            ratios.append(math.sqrt(first / second * first_second / second_first))
            print(f"{test}: second is {ratios[-1]:.3f} times as fast", flush=True)
        mean, low, high = interval(ratios)
        print(f"{test}: mean of {len(ratios)} rounds {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}", flush=True)


if __name__ == "__main__":
    main()
