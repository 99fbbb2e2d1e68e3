"""The first minutes with girih: `python quick_start.py [MODEL]`."""

import asyncio
import sys

import girih

name = sys.argv[1] if len(sys.argv) > 1 else "stories260k"
print(f"{name} needs {girih.plan(name).total / 1e6:.1f} MB")

with girih.Model.open(name, sequences=2) as model:
    for event in model.stream("Once upon a time", max_tokens=30):
        print(event.text, end="", flush=True)
    print()

    # The same seed gives the same bytes, whatever else runs.
    async def stories() -> list[girih.Reply]:
        return await asyncio.gather(
            *(model.agenerate("One day", temperature=0.8, seed=seed, max_tokens=20) for seed in range(4))
        )

    for reply in asyncio.run(stories()):
        print(repr(reply.text), reply.stop.kind)
