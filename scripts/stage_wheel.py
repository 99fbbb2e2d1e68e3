#!/usr/bin/env python3
"""Prepares what maturin packs: passes on cargo's messages (`--message-format json`) from the standard input, then

- makes the functions and values of Python that the library needs weak symbols, so that a process without Python can load it:
  there they have the address 0, and in Python nothing changes. abi3audit and `requires-python` say that no Python lacks one;
- copies the launcher, and the script that starts it, to crates/python/wheel_data.

It writes to the library that cargo has built, and a second run changes nothing.
"""

import json
import mmap
import shutil
import struct
import sys
from pathlib import Path

PYTHON = Path(__file__).parent.parent / "crates" / "python"

# `elf(5)`: 64 bits, little-endian, as x86-64 and aarch64 have it.
MAGIC = b"\x7fELF\x02\x01"
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SHT_DYNSYM, SHN_UNDEF = 11, 0
STB_GLOBAL, STB_WEAK = 1, 2


def weaken(library: Path) -> int:
    """Makes the undefined symbols `Py…` and `_Py…` of a library weak, and returns how many there are."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as image:
        if image[: len(MAGIC)] != MAGIC:
            raise SystemExit(f"{library} is no library in ELF with 64 bits")
        offset, size, count = struct.unpack_from("<Q10xHH", image, 0x28)
        sections = [SECTION_HEADER.unpack_from(image, offset + size * index) for index in range(count)]
        (symbols,) = (section for section in sections if section[1] == SHT_DYNSYM)
        names = sections[symbols[6]][4]
        found = 0
        for at in range(symbols[4], symbols[4] + symbols[5], SYMBOL.size):
            name, info, _, section, _, _ = SYMBOL.unpack_from(image, at)
            if section == SHN_UNDEF and image[names + name : names + name + 3].lstrip(b"_").startswith(b"Py"):
                assert info >> 4 in (STB_GLOBAL, STB_WEAK)
                image[at + 4] = STB_WEAK << 4 | info & 15
                found += 1
    return found


def stage(launcher: Path) -> None:
    """Copies the launcher into the package and the script into the folder of scripts."""
    for file, place in ((launcher, "platlib/girih/girih"), (PYTHON / "script.py", "scripts/girih")):
        target = PYTHON / "wheel_data" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        target.chmod(0o755)


def main() -> None:
    """Reads the messages."""
    built: dict[str, Path] = {}
    for line in sys.stdin:
        sys.stdout.write(line)
        message = json.loads(line)
        if message["reason"] == "compiler-artifact":
            built.update({Path(name).name: Path(name) for name in message["filenames"]})
    try:
        library, launcher = built["lib_girih.so"], built["girih-launcher"]
    except KeyError as name:
        raise SystemExit(f"cargo has built no {name}") from None
    if not weaken(library):
        raise SystemExit(f"{library} needs nothing of Python")
    stage(launcher)


if __name__ == "__main__":
    main()
