#!/usr/bin/env python3
"""Prints a statement of provenance (in-toto, SLSA 1.0) for the files of a folder that SHA256SUMS lists. It is not signed.

    packaging/provenance.py target/dist --version 0.1.0 --commit COMMIT --targets x86_64-gnu
"""

import argparse
import hashlib
import json
import os
import subprocess
from pathlib import Path


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--targets", nargs="+", required=True)
    args = parser.parse_args()
    sums = [line.split(maxsplit=1) for line in (args.folder / "SHA256SUMS").read_text().splitlines()]
    lock = hashlib.sha256(Path("Cargo.lock").read_bytes()).hexdigest()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in sums],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "packaging/build.sh",
                "externalParameters": {"version": args.version, "targets": args.targets},
                "internalParameters": {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "")},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": args.commit}},
                    {"name": "Cargo.lock", "digest": {"sha256": lock}},
                    {"name": "rustc", "annotations": {"version": said("rustc", "--version")}},
                    {"name": "cargo-zigbuild", "annotations": {"version": said("cargo-zigbuild", "--version")}},
                    {"name": "zig", "annotations": {"version": said("python3", "-m", "ziglang", "version")}},
                ],
            },
            "runDetails": {"builder": {"id": "packaging/build.sh"}},
        },
    }
    print(json.dumps(statement, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
