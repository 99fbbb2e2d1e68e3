#!/usr/bin/env python3
"""Count the instructions of the kernels' inner loops in a program, and compute
the minimum number of cycles that they take on two processors.

    RUSTFLAGS="-C symbol-mangling-version=v0" \\
        cargo test --release --locked -p girih-cpu --test it --no-run
    python3 scripts/inner_loops.py target/release/deps/it-… [--functions REGEX] [--least N]

    python3 scripts/inner_loops.py PROGRAM --neon       # of a program for aarch64; without bounds

It needs objdump, or aarch64-linux-gnu-objdump. A loop is the code between a backward jump and its target; of
nested loops, the innermost one that multiplies is shown. Function names come from
the symbols, so an inlined loop is listed under the function that it was inlined
into, in the order of addresses; the counts of multiplications distinguish them.
Each line of the table is one loop:

    all      instructions; a memory operand is part of its instruction
    vnni     integer dot products (vpdpbusd; sdot, smmla, smull)
    fma      fused multiply-adds, multiplications, byte products, bf16 pair products, and
             signs and sizes of bytes, which Zen 4 computes in the same two pipes (measured)
    shift    shifts, shuffles, conversions
    logic    other vector arithmetic: and, or, additions, compares, maxima
    line     loads of whole vectors
    cast     broadcasts of one number to all lanes, alone or as an operand
    stack    operands on the stack (also counted as loads or stores): spilled registers
    pref     prefetches
    Zen 4    the minimum number of cycles on AMD's Zen 4, and the limiting resource
    EMR      the same on Intel's Emerald Rapids

Zen 4 (AMD, Software Optimization Guide for the Zen 4 Microarchitecture, 57647):
two pipes multiply, two shift, shuffle or convert, four do logic. Each is 256 bits
wide, so 512-bit vectors take twice as long. It does two vector loads per cycle (one
of 512 bits) and dispatches six operations per cycle. Emerald Rapids (Intel,
Optimization Reference Manual, 248966, for Golden Cove): ports 0 and 5 do all 512-bit
arithmetic, ports 0, 1 and 5 all 256-bit arithmetic. Shuffles use port 5, 512-bit
shifts and conversions mostly port 0; here, both count as using one of two ports. It
does three loads per cycle (two of 512 bits) and six operations per cycle.
"""

import argparse
import collections
import re
import subprocess

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
TARGET = re.compile(r"(?:^|, )([0-9a-f]+) <")

# An instruction of NEON has a vector as its first operand.
NEON_OPERAND = re.compile(r"v\d+\.")
NEON_KINDS = [
    ("vnni", re.compile(r"sdot|smmla|smull")),
    ("fma", re.compile(r"fml[as]|fmul")),
    ("shift", re.compile(r"[su]?sh[lr]|zip|uzp|trn|tbl|ext|dup|mov$|ins|fcvt|scvtf|[su]xtl|fcvtl|shll")),
    ("logic", re.compile(r"(?!movi|ld|st)")),
]

Instruction = collections.namedtuple("Instruction", "address name operands")
Bound = collections.namedtuple("Bound", "cycles what")


def functions(program, pattern, objdump):
    """Return the instructions of the functions whose names match."""
    listing = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", program],
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
    """Return the bodies of loops that multiply and contain no other such loop. Two
    overlapping loops are both returned: one loop with two entries."""
    ranges = []
    for jump in instructions:
        target = TARGET.search(jump.operands) if re.match(r"j|b$|b\.|cbn?z|tbn?z", jump.name) else None
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
    """Return the kind of vector work of an instruction, or None."""
    name = instruction.name
    if NEON_OPERAND.match(instruction.operands):
        return next((kind for kind, names in NEON_KINDS if names.match(name)), None)
    if name.startswith("vpdpbusd"):
        return "vnni"
    if re.match(r"vf(n?m)(add|sub)|vmul[ps]|vpmadd|vpmull|vdpbf16ps|vpsign|vpabs", name):
        return "fma"
    if re.match(r"vps[lr][la]|vpshuf|vperm|vcvt|vpmov[sz]x|vextract|vinsert|vunpck|vpunpck|vscalef|vrnd", name):
        return "shift"
    if name.startswith("v") and not re.match(r"v(mov|pbroadcast|broadcast|zero)", name):
        return "logic"
    return None


def count_neon(loop):
    """Count the instructions of a loop of NEON by kind."""
    counts = collections.Counter(all=len(loop))
    counts.update(filter(None, map(kind, loop)))
    for i in loop:
        counts["pref"] += i.name == "prfm"
        counts["stack"] += "[sp" in i.operands
        counts["cast"] += i.name == "ld1r"
        counts["line"] += i.name in ("ldr", "ldur", "ldp") and i.operands.startswith("q")
    return counts


def count(loop):
    """Count the instructions of a loop by kind."""
    counts = collections.Counter(all=len(loop))
    wide = sum("%zmm" in i.operands for i in loop) > 0
    for i in loop:
        counts["pref"] += i.name.startswith("prefetch")
        counts["stack"] += bool(re.search(r"\(%r[sb]p", i.operands))
        what = kind(i)
        if what:
            counts[what] += 1
            # A 256-bit instruction takes half of a 512-bit slot.
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
    """Return the limit with the most cycles."""
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
    # Three ports do 256-bit arithmetic, but only two of them multiply.
    narrow = (c["vnni"] + c["fma"]) / 2
    return largest({
        "arithmetic": arithmetic / 2 if c["wide"] else max(narrow, 2 * arithmetic / 3),
        "loads": max(c["wide line"] / 2, (c["line"] + c["cast"] + c["pref"]) / 3),
        "dispatch": c["all"] / 6,
    })


DEFAULT = (
    r"kernels::avx512::(Avx512 as .*(Narrow<.*(Q4_0|Q8_0|Q4K|Q6K), [18]>|Tile<|Floats<|Score<|Blend<)|bf16::dots)"
)


NEON = r"neon.*(Narrow<.*(Q4_0|Q8_0|Q4K|Q6K), [18]>|Tile<12|Floats<.*(1|12), \d>)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", help="a program or library with symbols")
    parser.add_argument("--functions", help="a regular expression for function names")
    parser.add_argument("--least", type=int, default=4, help="minimum number of multiplications of a loop")
    parser.add_argument("--neon", action="store_true", help="the program is for aarch64")
    arguments = parser.parse_args()
    objdump, count_kinds = ("aarch64-linux-gnu-objdump", count_neon) if arguments.neon else ("objdump", count)
    pattern = re.compile(arguments.functions or (NEON if arguments.neon else DEFAULT))
    columns = ["all", "vnni", "fma", "shift", "logic", "line", "cast", "stack", "pref"]
    print(f"{'loop':<58}" + "".join(f"{c:>6}" for c in columns) + ("" if arguments.neon else f"  {'Zen 4':<18}  EMR"))
    for name, instructions in sorted(functions(arguments.program, pattern, objdump).items()):
        short = re.sub(r"^<.*enter::compiled::<[^<]*?, |(girih_cpu::)?(kernels|vector|layout|integers|packed|attend)::", "", name)
        short = short.removesuffix(">")
        for index, loop in enumerate(innermost_loops(instructions)):
            c = count_kinds(loop)
            if c["vnni"] + c["fma"] < arguments.least:
                continue
            bounds = [f"{b.cycles:6.1f} {b.what:<11}" for b in (() if arguments.neon else (zen4(c), emerald_rapids(c)))]
            print(f"{short + ' #' + str(index):<58}" + "".join(f"{c[k]:>6}" for k in columns) + "  " + "  ".join(bounds))


if __name__ == "__main__":
    main()
