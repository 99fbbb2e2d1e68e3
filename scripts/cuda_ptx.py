#!/usr/bin/env python3
"""Makes the PTX of the kernels for CUDA from their sources, and checks with ptxas that none spills registers.

    pip install nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-cuda-nvcc-cu12==12.8.93
    scripts/cuda_ptx.py            # writes crates/gpu/src/kernels/cuda/*.ptx

PTX 8.7 is what drivers from 570 on compile. A test of the crate compares the digest that each file begins with.
"""

import ctypes
import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/gpu/src/kernels/cuda"
HEADERS = ["common.cuh", "math.cuh", "state.cuh", "codes.cuh", "rounding.cuh"]
MODULES = ["rows", "products", "attention"]
VERSION = "12.8.93"
TARGET = "compute_80"
# What ptxas compiles for: the first target, and Hopper.
CHECKED = ["sm_80", "sm_90"]
# Without contraction: the order and the roundings of sums are those of the sources.
OPTIONS = [f"--gpu-architecture={TARGET}", "--std=c++17", "--fmad=false"]


def digest(texts):
    """FNV-1a of 64 bits, as `digest` of cuda/kernels.rs."""
    value = 0xCBF29CE484222325
    for byte in b"".join(texts):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def packages():
    for name in ["nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12"]:
        found = importlib.metadata.version(name)
        if found != VERSION:
            sys.exit(f"{name} is {found}, but {VERSION} is needed: pip install {name}=={VERSION}")
    folder = pathlib.Path(importlib.metadata.distribution("nvidia-cuda-nvrtc-cu12").locate_file("nvidia"))
    return folder / "cuda_nvrtc/lib/libnvrtc.so.12", folder / "cuda_nvcc/bin/ptxas"


def compile_ptx(nvrtc, name, source, headers):
    text = lambda strings: (ctypes.c_char_p * len(strings))(*strings)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source, f"{name}.cu".encode(), len(headers),
        text([headers[header] for header in HEADERS]), text([header.encode() for header in HEADERS]))
    options = [option.encode() for option in OPTIONS]
    status = nvrtc.nvrtcCompileProgram(program, len(options), text(options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if log.value.strip():
        print(log.value.decode(), file=sys.stderr)
    if status != 0:
        sys.exit(f"{name}.cu does not compile")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


def shortened(ptx):
    """The same text with short names of parameters, of labels and of the memory of blocks, as the program holds it."""
    ptx = re.sub(r"girih_\w+_param_0", "P", ptx)
    ptx = re.sub(r"\$L__BB(\d+)_(\d+)", r"$\1_\2", ptx)
    names = dict.fromkeys(re.findall(r"\b_Z\w+", ptx))
    for index, name in enumerate(sorted(names, key=len, reverse=True)):
        ptx = re.sub(rf"\b{name}\b", f"M{index}", ptx)
    return ptx.replace("\t", " ").replace(", ", ",").replace("; ", ";")


def check(ptxas, path):
    """Prints registers and memory of each kernel; whether one spills."""
    spills = False
    for target in CHECKED:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as out:
            command = [ptxas, "-v", f"-arch={target}", "-o", out.name, path]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            sys.exit(said.stderr)
        lines = said.stderr.splitlines()
        for index, line in enumerate(lines):
            kernel = re.search(r"Function properties for (girih_\w+)", line)
            if kernel:
                stack, used = lines[index + 1].strip(), lines[index + 2].strip().removeprefix("ptxas info    : ")
                is_spilt = "0 bytes stack frame, 0 bytes spill stores" not in stack
                spills |= is_spilt
                print(f"{target} {kernel[1]:24} {used}{' SPILLS: ' + stack if is_spilt else ''}")
    return spills


def main():
    library, ptxas = packages()
    nvrtc = ctypes.CDLL(str(library))
    headers = {header: (FOLDER / header).read_bytes() for header in HEADERS}
    spills = False
    for name in MODULES:
        source = (FOLDER / f"{name}.cu").read_bytes()
        ptx = compile_ptx(nvrtc, name, source, headers)
        lines = (line.split("//")[0].strip() for line in ptx.splitlines())
        body = shortened("\n".join(line for line in lines if line) + "\n")
        path = FOLDER / f"{name}.ptx"
        path.write_text(f"// source {digest([*headers.values(), source])}, NVRTC {VERSION}, {TARGET}\n{body}")
        print(f"{path.name}: {path.stat().st_size} bytes")
        spills |= check(ptxas, path)
    sys.exit("a kernel spills registers" if spills else 0)


if __name__ == "__main__":
    main()
