#!/usr/bin/env python3
"""Counts the instructions of the inner loops of the kernels in a program, and
says what the vector units of two processors need for them at the least.

    RUSTFLAGS="-C symbol-mangling-version=v0" \\
        cargo test --release --locked -p girih-cpu --test it --no-run
    python3 scripts/inner_loops.py target/release/deps/it-… [--functions REGEX] [--least N]

It needs objdump. A loop is what lies between a backward jump and its target; of
loops within each other the innermost that multiplies is shown. Names of
functions come from the symbols, so loops that the compiler has inlined stand
under the name of what they were inlined into, in the order of their addresses;
their products tell them apart. One line of the table is one loop:

    all      instructions, a memory operand counting as part of its instruction
    vnni     integer dot products (vpdpbusd)
    fma      fused multiply-adds, multiplications, byte products, pairs of brain floats
    shift    shifts, shuffles, conversions
    logic    other vector arithmetic: and, or, additions, compares, maxima
    line     loads of whole vectors
    cast     loads of one number for all lanes, alone or as an operand
    stack    operands on the stack, among the loads and stores: spilled registers
    pref     prefetches
    Zen 4    cycles that the loop needs at the least on AMD's Zen 4, and what binds
    EMR      the same on Intel's Emerald Rapids

Zen 4 (AMD, Software Optimization Guide for the Zen 4 Microarchitecture, 57647):
two pipes multiply, two shift or shuffle or convert, four do logic, each 256 bits
wide, so that vectors of 512 bits take twice as long; two vector loads a cycle,
one if of 512 bits; six operations a cycle are dispatched. Emerald Rapids (Intel,
Optimization Reference Manual, 248966, for Golden Cove): ports 0 and 5 do all
arithmetic of 512 bits, ports 0, 1 and 5 that of 256; shuffles go to port 5
(shifts and conversions of 512 bits to port 0 for the most part; both count as
one of two here); three loads a cycle, two of 512 bits; six operations a cycle.
"""

import argparse
import collections
import re
import subprocess

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
TARGET = re.compile(r"^([0-9a-f]+)\b")

Instruction = collections.namedtuple("Instruction", "address name operands")
Bound = collections.namedtuple("Bound", "cycles what")


def functions(program, pattern):
    """The functions whose names match, with their instructions."""
    listing = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", program],
        check=True, capture_output=True, text=True,
    ).stdout
    found, current = {}, None
    for line in listing.splitlines():
        if head := FUNCTION.match(line):
            name = head.group(1)
            current = found.setdefault(name, []) if pattern.search(name) else None
        elif current is not None and (match := INSTRUCTION.match(line)):
            address, name, operands = match.groups()
            current.append(Instruction(int(address, 16), name, operands))
    return found


def innermost_loops(instructions):
    """The bodies of loops that multiply and hold no other such loop. Two that
    overlap are both shown: a loop and another way into it."""
    ranges = []
    for jump in instructions:
        target = TARGET.match(jump.operands) if jump.name.startswith("j") else None
        if not target or int(target.group(1), 16) > jump.address:
            continue
        body = [i for i in instructions if int(target.group(1), 16) <= i.address <= jump.address]
        if body and body[0].address >= instructions[0].address and any(kind(i) in ("vnni", "fma") for i in body):
            ranges.append(body)
    def holds(outer, inner):
        return outer[0].address <= inner[0].address and inner[-1].address <= outer[-1].address

    loops = [a for a in ranges if not any(holds(a, b) and len(b) < len(a) for b in ranges)]
    return sorted({loop[0].address: loop for loop in loops}.values(), key=lambda loop: loop[0].address)


def kind(instruction):
    """What an instruction asks the vector units for, or nothing."""
    name = instruction.name
    if name.startswith("vpdpbusd"):
        return "vnni"
    if re.match(r"vf(n?m)(add|sub)|vmul[ps]|vpmadd|vpmull|vdpbf16ps", name):
        return "fma"
    if re.match(r"vps[lr][la]|vpshuf|vperm|vcvt|vpmov[sz]x|vextract|vinsert|vunpck|vpunpck|vscalef|vrnd", name):
        return "shift"
    if name.startswith("v") and not re.match(r"v(mov|pbroadcast|broadcast|zero)", name):
        return "logic"
    return None


def count(loop):
    """How often what stands in a loop."""
    counts = collections.Counter(all=len(loop))
    wide = sum("%zmm" in i.operands for i in loop) > 0
    for i in loop:
        counts["pref"] += i.name.startswith("prefetch")
        counts["stack"] += bool(re.search(r"\(%r[sb]p", i.operands))
        what = kind(i)
        if what:
            counts[what] += 1
            # An instruction of half the width takes half a pipe.
            counts["wide " + what] += 1 if "%zmm" in i.operands else 0.5
        if i.name.startswith("v") and "(" in i.operands:
            stores = re.match(r"^%[xyz]mm", i.operands) and i.operands.rstrip().endswith(")")
            if "{1to" in i.operands or "broadcast" in i.name:
                counts["cast"] += 1
            elif not stores:
                counts["line"] += 1
                counts["wide line"] += 1 if "%zmm" in i.operands else 0.5
    counts["wide"] = wide
    return counts


def largest(limits):
    """The limit that binds."""
    return max((Bound(cycles, what) for what, cycles in limits.items()), key=lambda bound: bound.cycles)


def zen4(c):
    multiply = c["wide vnni"] + c["wide fma"]
    arithmetic = multiply + c["wide shift"] + c["wide logic"]
    return largest({
        "products": multiply,
        "shifts": c["wide shift"],
        "arithmetic": arithmetic / 2,
        "loads": c["wide line"] + (c["cast"] + c["pref"]) / 2,
        "dispatch": c["all"] / 6,
    })


def emerald_rapids(c):
    arithmetic = c["wide vnni"] + c["wide fma"] + c["wide shift"] + c["wide logic"]
    # Of 256 bits three are done a cycle, but products by two of the ports only.
    narrow = (c["vnni"] + c["fma"]) / 2
    return largest({
        "arithmetic": arithmetic / 2 if c["wide"] else max(narrow, 2 * arithmetic / 3),
        "loads": max(c["wide line"] / 2, (c["line"] + c["cast"] + c["pref"]) / 3),
        "dispatch": c["all"] / 6,
    })


DEFAULT = (
    r"kernels::avx512::(Avx512 as .*(Narrow<.*(Q4_0|Q8_0|Q4K|Q6K), [18]>|Tile<|Floats<|Score<|Blend<)|bf16::dots)"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", help="a program or library with symbols")
    parser.add_argument("--functions", default=DEFAULT, help="a pattern of their names")
    parser.add_argument("--least", type=int, default=4, help="products that a loop must have to be shown")
    arguments = parser.parse_args()
    columns = ["all", "vnni", "fma", "shift", "logic", "line", "cast", "stack", "pref"]
    print(f"{'loop':<58}" + "".join(f"{c:>6}" for c in columns) + f"  {'Zen 4':<18}  EMR")
    for name, instructions in sorted(functions(arguments.program, re.compile(arguments.functions)).items()):
        short = re.sub(r"^<.*enter::compiled::<[^<]*?, |(girih_cpu::)?(kernels|vector|layout|integers|packed|attend)::", "", name)
        short = short.removesuffix(">")
        for index, loop in enumerate(innermost_loops(instructions)):
            c = count(loop)
            if c["vnni"] + c["fma"] < arguments.least:
                continue
            bounds = [f"{b.cycles:6.1f} {b.what:<11}" for b in (zen4(c), emerald_rapids(c))]
            print(f"{short + ' #' + str(index):<58}" + "".join(f"{c[k]:>6}" for k in columns) + "  " + "  ".join(bounds))


if __name__ == "__main__":
    main()
