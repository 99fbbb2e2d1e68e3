"""Runs the Python examples of Markdown files: those of each file one after another, in one namespace."""

import re
import sys
from pathlib import Path

for name in sys.argv[1:]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = Path(name).read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start(1))
        print(f"{name}:{line + 1}", file=sys.stderr)
        # Faults are reported at the line of the document.
        exec(compile("\n" * line + match.group(1), name, "exec"), namespace)  # noqa: S102
