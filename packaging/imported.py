"""Tries the installed wheel, for packaging/check.sh: the model in this process and the program of the wheel tell the same story. Prints
Python's version and the time to import the package, the shortest of five processes.
"""

import json
import platform
import subprocess
import sys

import girih

PROMPT = "Once upon a time"
TIMED = "import time; begun = time.perf_counter(); import girih; print(time.perf_counter() - begun)"

call = [girih.program(), "run", "stories260k", PROMPT, "--temp", "1", "--seed", "7", "-n", "40", "--json"]
expected = json.loads(subprocess.check_output(call))["text"]
with girih.Model.open("stories260k") as model:
    told = model.generate(PROMPT, temperature=1.0, seed=7, max_tokens=40).text
if told != expected:
    sys.exit(f"the package tells {told!r}, and its program {expected!r}")
seconds = min(float(subprocess.check_output([sys.executable, "-c", TIMED])) for _ in range(5))
if seconds > 0.15:
    sys.exit(f"importing takes {seconds * 1000:.0f} ms, and 150 are allowed")
print(f"Python {platform.python_version()}: the program's story, imported in {seconds * 1000:.0f} ms")
