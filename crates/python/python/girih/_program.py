"""The program `girih` that the wheel brings, a file beside the modules of this package."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from girih.errors import GirihError, NotFound


def find_program() -> str | None:
    """The path of the program that was installed with this package; ``None`` if it was installed without."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "girih")
    return path if os.access(path, os.X_OK) else None


def program() -> str:
    """The path of the program that was installed with this package."""
    path = find_program()
    if path is None:
        raise NotFound("the program girih was not installed with this package; install its wheel")
    return path


def answer(arguments: list[str]) -> tuple[int, Any]:
    """Runs the program with ``--json``; returns its exit code and its answer."""
    ended = subprocess.run([program(), *arguments, "--json"], capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1) or not ended.stdout.strip():
        lines = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise GirihError(f"girih {arguments[0]}: {lines[-1].removeprefix('girih: ')}")
    return ended.returncode, json.loads(ended.stdout)


def verify(
    name: str | os.PathLike[str], *, golden: str | os.PathLike[str], against: str = "f32", kv: str | None = None
) -> dict[str, Any]:
    """Compares a model with a golden file of transformers, layer by layer, as ``girih verify`` does. ``passed`` of the
    answer says whether every value lies within its bound.

    The program of this package runs it in a process of its own.
    """
    arguments = ["verify", os.fspath(name), "--golden", os.fspath(golden), "--against", against]
    if kv is not None:
        arguments += ["--kv", kv]
    verdict: dict[str, Any] = answer(arguments)[1]
    return verdict
