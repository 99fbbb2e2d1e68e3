"""Tries the installed wheel, for packaging/check.sh: imported.py STORY [timed]. The file has what the program prints for the same
request, and the model in this process must tell the same. `timed` holds the import to 150 ms, the shortest of five processes.
"""

import platform
import subprocess
import sys
from pathlib import Path

import girih

TIMED = "import time; begun = time.perf_counter(); import girih; print(time.perf_counter() - begun)"

with girih.Model.open("stories260k") as model:
    told = model.generate("Once upon a time", temperature=1.0, seed=7, max_tokens=40).text + "\n"
if told != Path(sys.argv[1]).read_text(encoding="utf-8"):
    sys.exit(f"the package tells {told!r}, and not what {sys.argv[1]} has")
said = f"Python {platform.python_version()}, {platform.machine()}: the program's story"
if sys.argv[2:] == ["timed"]:
    seconds = min(float(subprocess.check_output([sys.executable, "-c", TIMED])) for _ in range(5))
    if seconds > 0.15:
        sys.exit(f"importing takes {seconds * 1000:.0f} ms, and 150 are allowed")
    said += f", imported in {seconds * 1000:.0f} ms"
print(said)
