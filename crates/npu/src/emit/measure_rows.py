#!/usr/bin/env python3
"""Measures the rows of the published tables on this machine, through aiecc and XRT (pyxrt).

`girih npu report --validate --emit DIR` writes this script, and a module for the op of each row with girih's tiles. In
DIR, this script compiles one module after another, runs it several times, and adds the median to measured.csv, beside
its simulated time and the published time of another program for the same op. Rows that measured.csv has a time of are left
out, so a run that was stopped goes on. It also writes machine.txt, which says what the times were measured on. Nobody has run
this on a device yet.

    measure_rows.py --dry-run
    measure_rows.py --only GEMV
"""

import argparse
import csv
import json
import pathlib
import platform
import statistics
import subprocess
import sys

import run_xrt

COLUMNS = ["module", "table", "label", "target", "published_us", "simulated_us", "measured_us", "error"]

AIECC = [
    "--no-xchesscc",
    "--no-xbridge",
    "--no-compile-host",
    "--alloc-scheme=basic-sequential",
    "--aie-generate-xclbin",
    "--aie-generate-npu-insts",
]


def said(command):
    """Runs a command, and returns what it prints, or why it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error}\n"
    return done.stdout + done.stderr


def write_machine(path, aiecc):
    """Writes what the times were measured on."""
    commands = [["xrt-smi", "examine"], ["uname", "-a"], [aiecc, "--version"], ["clang++", "--version"]]
    parts = [f"$ {' '.join(command)}\n{said(command)}" for command in commands]
    path.write_text("\n".join([f"python {platform.python_version()}\n", *parts]))


def build(row, folder, options):
    """Compiles the modules of a row."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.o").write_bytes(options.kernels.read_bytes())
    module = options.rows.parent.resolve() / row["module"]
    done = subprocess.run([options.aiecc, *AIECC, str(module)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"{options.aiecc} ended with {done.returncode}: {lines[-1] if lines else 'it printed nothing'}")


def measure(xrt, device, row, folder, options):
    """Returns the microseconds of a row: the sum of the medians of its launches."""
    manifest = json.loads((options.rows.parent / row["manifest"]).read_text())
    total = 0.0
    for launch in manifest["launches"]:
        times = []
        # The first run warms up.
        for _ in range(options.runs + 1):
            buffers = run_xrt.Buffers(manifest["arguments"], {})
            times.append(run_xrt.run_launch(xrt, device, launch, manifest["sequence"], folder, buffers))
        total += statistics.median(times[1:])
    return total


def known_rows(path):
    """Returns the modules that a file of results has times of; none if there is no file."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {row["module"] for row in csv.DictReader(file) if row["measured_us"]}


def selected(options):
    """Returns the rows that are left to measure."""
    known = known_rows(options.out)
    rows = json.loads(options.rows.read_text())
    wanted = [row for row in rows if options.only in row["table"] or options.only in row["label"]]
    return [row for row in wanted if row["module"] not in known]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=pathlib.Path, default=pathlib.Path("rows.json"), help="list of the rows")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("measured.csv"), help="file of the results")
    parser.add_argument("--only", default="", metavar="PART", help="only rows whose table or label contains PART")
    parser.add_argument("--runs", type=int, default=20, help="runs of each launch, of which the median counts")
    parser.add_argument("--aiecc", default="aiecc.py", help="mlir-aie's compiler")
    parser.add_argument("--kernels", type=pathlib.Path, default=pathlib.Path("kernels.o"), help="object file of kernels.cc")
    parser.add_argument("--dry-run", action="store_true", help="list the rows and run nothing")
    options = parser.parse_args()
    if options.runs < 1:
        sys.exit(f"--runs is {options.runs}: at least one run is needed")
    rows = selected(options)
    if options.dry_run:
        for row in rows:
            print(f"{row['module']}\t{row['table']}\t{row['label']}\t{row['published_us']:.1f} us published")
        print(f"{len(rows)} rows; each is compiled with {options.aiecc}, and each of its launches runs {options.runs + 1} times")
        return
    if not options.kernels.exists():
        sys.exit(f"{options.kernels} is missing: compile kernels.cc first, as docs/silicon.md says")
    write_machine(options.out.with_name("machine.txt"), options.aiecc)

    import pyxrt as xrt

    device = xrt.device(0)
    is_new = not options.out.exists() or options.out.stat().st_size == 0
    with options.out.open("a", newline="") as file:
        results = csv.DictWriter(file, COLUMNS)
        if is_new:
            results.writeheader()
            file.flush()
        for row in rows:
            result = {name: row[name] for name in COLUMNS[:6]}
            try:
                folder = options.rows.parent / "build" / pathlib.Path(row["module"]).stem
                build(row, folder, options)
                result["measured_us"] = f"{measure(xrt, device, row, folder, options):.1f}"
            except (RuntimeError, OSError, SystemExit) as error:
                # The other rows count without this one.
                result["error"] = str(error)
            results.writerow(result)
            file.flush()
            print(f"{row['table']} {row['label']}: {result.get('measured_us') or result['error']}", flush=True)


if __name__ == "__main__":
    main()
