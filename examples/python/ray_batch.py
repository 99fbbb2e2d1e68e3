"""Replies to many prompts with Ray Data: `python ray_batch.py PROMPTS REPLIES [MODEL]`.

PROMPTS has a JSON object with `prompt` in each line. The folder REPLIES gets a file for each 1,000 lines, whole or not at
all: a run that was stopped goes on with the parts that are missing when it is started again. On several machines, both
must be on a file system that all of them have. `--example 1000000` writes short prompts to PROMPTS first.
"""

import argparse
import json
import logging
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

import girih

PART = 1000
"""Lines of a part: what a stopped run repeats at most, for each actor."""

SEQUENCES = 16
"""Requests that an actor's model runs at once."""


class Replies:
    """An actor with a model, which writes the replies to a part."""

    def __init__(self, prompts: str, replies: str, model: str, max_tokens: int) -> None:
        self.prompts, self.replies, self.max_tokens = Path(prompts), Path(replies), max_tokens
        self.model = girih.Model.open(model, threads=1, sequences=SEQUENCES, waiting=SEQUENCES)
        self.threads = ThreadPoolExecutor(SEQUENCES)

    def reply(self, line: bytes) -> str:
        asked = json.loads(line)
        try:
            found = {"reply": self.model.generate(asked["prompt"], max_tokens=self.max_tokens).text}
        except (girih.Refused, girih.TooLong) as error:
            # It would be refused again. Any other error ends the run.
            found = {"error": str(error)}
        return json.dumps({**asked, **found}) + "\n"

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for part, start in zip(batch["part"], batch["start"], strict=True):
            with self.prompts.open("rb") as prompts:
                prompts.seek(start)
                lines = [line for line in (prompts.readline() for _ in range(PART)) if line]
            file = part_file(self.replies, part)
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_text("".join(self.threads.map(self.reply, lines)), encoding="utf-8")
            unfinished.rename(file)
        return {"part": batch["part"]}


def part_file(replies: Path, part: int) -> Path:
    return replies / f"{part:06}.jsonl"


def parts(prompts: Path) -> Iterator[dict[str, int]]:
    """The number of each part, and where it begins in the file."""
    at = 0
    with prompts.open("rb") as file:
        for number, line in enumerate(file):
            if number % PART == 0:
                yield {"part": number // PART, "start": at}
            at += len(line)


def write_example(prompts: Path, count: int) -> None:
    names, deeds = ["Lily", "Tom", "Ben", "Mia", "Sam"], ["saw a cat", "found a ball", "went to the park", "had a toy", "was sad"]
    source = random.Random(0)
    with prompts.open("w", encoding="utf-8") as file:
        for number in range(count):
            story = f"One day, {source.choice(names)} {source.choice(deeds)} and"
            file.write(json.dumps({"id": number, "prompt": story}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("replies", type=Path)
    parser.add_argument("model", nargs="?", default="stories260k")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--actors", type=int, default=os.cpu_count())
    parser.add_argument("--example", type=int, metavar="COUNT")
    args = parser.parse_args()
    if args.example:
        write_example(args.prompts, args.example)
    args.replies.mkdir(exist_ok=True)
    missing = [part for part in parts(args.prompts) if not part_file(args.replies, part["part"]).exists()]
    print(f"{len(missing)} parts are missing", flush=True)
    if not missing:
        return
    ray.init(num_cpus=args.actors, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    paths = {"prompts": str(args.prompts.resolve()), "replies": str(args.replies.resolve())}
    done = ray.data.from_items(missing, override_num_blocks=len(missing)).map_batches(
        Replies,
        fn_constructor_kwargs={**paths, "model": args.model, "max_tokens": args.max_tokens},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=args.actors),
        num_cpus=1,
    )
    begun = time.monotonic()
    count = sum(1 for _ in done.iter_rows())
    seconds = time.monotonic() - begun
    print(f"{count} parts of {PART} prompts in {seconds:.1f} s, with the start of the actors: {count * PART / seconds:.0f} prompts/s")


if __name__ == "__main__":
    main()
