#!/usr/bin/env python3
"""Runs a program that `girih npu compile --emit aie` wrote, through XRT (pyxrt).

It needs what aiecc made of the module: for each launch DEVICE.xclbin and DEVICE_sequence.bin.
Each launch gets a hardware context of its own, because its cores run once and its locks end
where the next launch does not begin. Nobody has run this on a device yet.

    run_xrt.py 001-gemm.json --build DIR --set x=x.bin --get y=y.bin
"""

import argparse
import json
import pathlib
import sys
import time

# The command of a kernel in an xclbin that runs a sequence of instructions, and the numbers of its
# arguments: opcode, instructions, their number, then the buffers.
RUN_SEQUENCE = 3
INSTRUCTIONS = 1
FIRST_BUFFER = 3


def named_files(pairs, arguments, option):
    """Splits NAME=FILE, and checks that the program has arguments of these names."""
    files = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals:
            sys.exit(f"{option} {pair}: NAME=FILE is needed")
        if name not in arguments:
            sys.exit(f"{option} {pair}: the program has no argument {name}; it has {', '.join(arguments)}")
        files[name] = pathlib.Path(path)
    return files


def content(path, argument):
    """Reads the bytes of an argument."""
    data = path.read_bytes()
    if len(data) != argument["bytes"]:
        sys.exit(f"{path} has {len(data)} bytes; {argument['name']} needs {argument['bytes']}")
    return data


def run_launch(xrt, device, launch, sequence, build, buffers):
    """Runs one launch, and returns its time in microseconds."""
    xclbin = xrt.xclbin(str(build / f"{launch['device']}.xclbin"))
    device.register_xclbin(xclbin)
    context = xrt.hw_context(device, xclbin.get_uuid())
    kernel = xrt.kernel(context, xclbin.get_kernels()[0].get_name())
    words = (build / f"{launch['device']}_{sequence}.bin").read_bytes()
    instructions = xrt.bo(device, len(words), xrt.bo.cacheable, kernel.group_id(INSTRUCTIONS))
    instructions.write(words, 0)
    instructions.sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
    own = []
    for place, argument in enumerate(launch["arguments"]):
        if argument not in buffers.objects:
            size = (buffers.arguments[argument]["bytes"] + 3) // 4 * 4
            group = kernel.group_id(FIRST_BUFFER + place)
            buffers.objects[argument] = xrt.bo(device, size, xrt.bo.host_only, group)
            buffers.fill(xrt, argument)
        own.append(buffers.objects[argument])
    begun = time.perf_counter()
    state = kernel(RUN_SEQUENCE, instructions, len(words) // 4, *own).wait()
    micros = (time.perf_counter() - begun) * 1e6
    if state != xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED:
        sys.exit(f"launch {launch['name']} ended with {state}; COMPLETED is needed")
    return micros


class Buffers:
    """The buffer object of each argument, made when a launch first uses it."""

    def __init__(self, arguments, given):
        self.arguments = arguments
        self.given = given
        self.objects = {}

    def fill(self, xrt, argument):
        """Writes the given bytes, or zeros."""
        name = self.arguments[argument]["name"]
        size = self.arguments[argument]["bytes"]
        self.objects[argument].write(self.given.get(name, bytes(size)), 0)
        self.objects[argument].sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)

    def read(self, xrt, name):
        """Reads the bytes of an argument back."""
        place = [argument["name"] for argument in self.arguments].index(name)
        if place not in self.objects:
            sys.exit(f"no launch uses {name}")
        self.objects[place].sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
        return bytes(self.objects[place].read(self.arguments[place]["bytes"], 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("."), help="folder of aiecc's output")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=FILE", help="bytes of an argument")
    parser.add_argument("--get", action="append", default=[], metavar="NAME=FILE", help="write an argument's bytes")
    options = parser.parse_args()
    manifest = json.loads(options.manifest.read_text())
    if manifest["format"] != 1:
        sys.exit(f"{options.manifest} has format {manifest['format']}; this loader reads 1")
    arguments = {argument["name"]: argument for argument in manifest["arguments"]}
    inputs = named_files(options.set, arguments, "--set")
    outputs = named_files(options.get, arguments, "--get")
    given = {name: content(path, arguments[name]) for name, path in inputs.items()}

    import pyxrt as xrt

    device = xrt.device(0)
    buffers = Buffers(manifest["arguments"], given)
    for launch in manifest["launches"]:
        micros = run_launch(xrt, device, launch, manifest["sequence"], options.build, buffers)
        print(f"{launch['name']}\t{micros:.1f} us")
    for name, path in outputs.items():
        path.write_bytes(buffers.read(xrt, name))


if __name__ == "__main__":
    main()
