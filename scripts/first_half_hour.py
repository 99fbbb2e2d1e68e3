#!/usr/bin/env python3
"""Write a transcript of a newcomer's first half hour, in a real pseudo-terminal.

    first_half_hour.py [--girih PROGRAM] [--output FILE]

Installs girih with `cargo install` into an empty folder, or takes a built PROGRAM; then runs each
command of STEPS in an empty home folder, types what the step types, and writes what the screen showed.
Models come from the repository: the built-in one, and fixtures that a hub on loopback serves. Lines
that were erased again, such as progress bars, are listed below the screen. Exits with 1 if a step takes
too long, ends with another code than it should, or does not show what it should. Standard library only.
"""

import argparse
import os
import re
import shlex
import sys
import tempfile

from loopback_hub import Hub
from terminal import PROMPT, Terminal

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIXTURES = os.path.join(REPOSITORY, "tests/fixtures")
TIMEOUT = 180
INSTALL_TIMEOUT = 3600

# How many of a step's erased lines are written: the first, the last and some between.
ERASED_SHOWN = 4

# The files of a model that the hub serves, and the rate, so that a download is seen.
REPOSITORY_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
HUB_RATE = 256 << 10


class Step:
    """A command line, what is typed, the exit code, and a text that must appear."""

    def __init__(self, title, command, shows="", code=0, typed=()):
        self.title, self.command, self.shows, self.code, self.typed = title, command, shows, code, typed


SCHEMA = '{"type": "object", "properties": {"a": {"const": 3}}, "required": ["a"], "additionalProperties": false}'

STEPS = [
    Step("What is this?", "girih --version", "girih"),
    Step("Help", "girih --help", "(?s)run.*chat.*pull"),
    Step("Help of a command", "girih run --help", "--temp"),
    Step("A story from the built-in model", "girih run", "Once upon a time"),
    Step("A prompt", 'girih run stories260k "Lily had a red ball." -n 40 --temp 0', "Lily"),
    Step("A conversation", "girih chat stories260k -n 40", "(?s)maximum length: /continue.*temp 0.5.*context: .*left",
         typed=[("> ", "/help\r"), (PROMPT, "Tell me about a dog.\r"), (PROMPT, "/continue\r"),
                (PROMPT, "/set temp 0.5\r"), (PROMPT, "And a cat?\r"), (PROMPT, "/show\r"),
                (PROMPT, "/stats\r"), (PROMPT, "/quit\r")]),
    Step("Ctrl-C clears a line with text", "girih chat stories260k -n 8", "(?s)no message to remove.*Ctrl-C again",
         typed=[("> ", "half a line\x03"), (PROMPT, "another half\x03"), (PROMPT, "/undo\r"), (PROMPT, "\x03"),
                (PROMPT, "\x03")]),
    Step("A conversation is saved twice", "girih chat stories260k -n 8", "(?s)saved 2 messages.*saved 4 messages",
         typed=[("> ", "Tom\r"), (PROMPT, "/save tom.json\r"), (PROMPT, "Lily\r"), (PROMPT, "/save tom.json\r"),
                (PROMPT, "/?\r"), (PROMPT, "/bye\r")]),
    Step("JSON, with a schema as text", f"girih run stories260k Once -n 40 --schema '{SCHEMA}'", r'\{ ?"a" ?: ?3 ?\}'),
    Step("llama.cpp's call", "girih run -hf Qwen/Qwen3-0.6B hi", "girih pull Qwen/Qwen3-0.6B", 2),
    Step("llama.cpp's options", "girih run -m stories260k -p Once -n -1 --temperature 0 -s 1 -c 64", "Once"),
    Step("llama.cpp's conversation", "girih run stories260k -cnv", "girih chat MODEL", 2),
    Step("llama.cpp's flash attention", "girih run stories260k hi -fa on", "remove -fa", 2),
    Step("llama.cpp's locked memory", "girih run stories260k hi --mlock", "remove --mlock", 2),
    Step("Ollama's name", "girih run qwen3:0.6b hi", "(?s)qwen3:0.6b is Qwen/Qwen3-0.6B.*girih pull Qwen/Qwen3-0.6B", 2),
    Step("A misspelled name", "girih pull qwen3:0.5b", "did you mean 'qwen3:0.6b'", 2),
    Step("Ollama's list", "girih ls", "stories260k"),
    Step("Ollama's processes", "girih ps", "girih has no command 'ps'", 2),
    Step("A misspelled command", "girih rnu", "did you mean 'run'", 2),
    Step("A misspelled option", "girih run stories260k Hi --tmep 0", "--temp", 2),
    Step("A model that is not there", "girih run no/such-model Hi", "no/such-model", 2),
    Step("Download", "girih pull small/llama", "model"),
    Step("What is there", "girih list", "small/llama"),
    Step("Run what was downloaded", "girih run small/llama hello -n 8 --temp 0 --raw"),
    Step("Its plan and tensors", "girih inspect small/llama"),
    Step("Quantize it", "girih quantize small/llama small.gguf --type q8_0", "small.gguf"),
    Step("Run the quantized file", "girih run small.gguf hello -n 8 --temp 0 --raw"),
    Step("Quantize the built-in model", "girih quantize stories260k stories.gguf --type q4_0", "stories.gguf"),
    Step("Run it", 'girih run stories.gguf "Once upon a time" -n 30 --temp 0 --raw', "Once"),
    Step("Speed", "girih bench stories260k -p 64 -n 16", "pp64"),
    Step("Speed, without options", "girih bench stories260k -r 1", "(?s)pp511.*tg128"),
    Step("Where do two backends differ?", "girih diagnose stories260k", "--reference", 2),
    Step("Time of each operator", "girih profile stories260k"),
    Step("This machine", "girih doctor"),
    Step("Is it right?", "girih verify tests/fixtures/qwen3 --golden tests/fixtures/qwen3/golden.safetensors"),
    Step("How well does it predict a text?", "girih perplexity stories260k LICENSE"),
    Step("An array", "girih npu sim stories260k --target toy --rows 64 --context 128", "submissions"),
    Step("The array's report", "girih npu report stories260k --target toy --rows 64 --context 128 --html report.html",
         "(?s)A prefill of 64 tokens after 64 takes .*report.html"),
    Step("Is the simulator right?", "girih npu report --validate", "median"),
    Step("Remove the download", "girih rm small/llama"),
]


def environment(home, program, hub):
    """The variables of the new user: a home with the files that steps name, a path and the hub."""
    folder = os.path.join(home, "bin")
    os.mkdir(folder)
    os.symlink(program, os.path.join(folder, "girih"))
    for name in ("tests", "LICENSE"):
        os.symlink(os.path.join(REPOSITORY, name), os.path.join(home, name))
    path = os.pathsep.join([folder, os.environ.get("PATH", "")])
    return {"HOME": home, "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8", "HF_ENDPOINT": hub.url}


def install(write, home):
    """Installs the program as README says, and returns its path."""
    command = "cargo install --locked --path crates/cli"
    root = os.path.join(home, "installed")
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME") if name in os.environ}
    terminal = Terminal([*command.split(), "--root", root], {**keep, "TERM": "xterm-256color"}, REPOSITORY)
    code = terminal.finish(INSTALL_TIMEOUT)
    lines = terminal.screen.text().splitlines()
    write(f"## Install\n\n$ {command}\n" + "\n".join(["…", *lines[-4:]]) + "\n")
    if code != 0:
        raise RuntimeError(f"the installation ended with {code}")
    return os.path.join(root, "bin/girih")


def run(step, variables, folder):
    """Runs a step; returns what is written about it and what is wrong with it."""
    terminal = Terminal(shlex.split(step.command), variables, folder)
    faults = []
    try:
        for wanted, text in step.typed:
            terminal.wait_for(wanted, TIMEOUT)
            terminal.type(text, 0.01)
        code = terminal.finish(TIMEOUT)
    except TimeoutError as error:
        code, faults = None, [str(error).splitlines()[0]]
    shown = terminal.screen.text()
    if code is not None and code != step.code:
        faults.append(f"the exit code is {code} instead of {step.code}")
    # A line may be broken between any two words.
    if not re.search(step.shows, " ".join(shown.split())):
        faults.append(f"{step.shows!r} is not shown")
    text = f"## {step.title}\n\n$ {step.command}\n{shown}\n"
    erased = some([line for line in terminal.screen.erased if line not in shown and not line.startswith("> ")])
    if erased:
        text += "\nshown in between:\n" + "".join(f"    {line}\n" for line in erased)
    if code:
        text += f"\n[exit code {code}]\n"
    return text + "".join(f"\n[FAILED: {fault}]\n" for fault in faults), faults


def some(lines):
    """The first, the last, and some lines between."""
    if len(lines) <= ERASED_SHOWN:
        return lines
    return [lines[index * (len(lines) - 1) // (ERASED_SHOWN - 1)] for index in range(ERASED_SHOWN)]


def main():
    parser = argparse.ArgumentParser(description="Write a transcript of a newcomer's first half hour.")
    parser.add_argument("--girih", help="a built program; without it, girih is installed with cargo")
    parser.add_argument("--output", help="the file to write; otherwise standard output")
    arguments = parser.parse_args()
    pieces, failed = [], []

    def write(text):
        for path, name in [(home, "~"), (REPOSITORY, "girih")]:
            text = text.replace(path, name)
        pieces.append(text)
        print(text, file=sys.stderr, flush=True)

    files = {}
    for name in REPOSITORY_FILES:
        with open(os.path.join(FIXTURES, "llama32_tied", name), "rb") as file:
            files[name] = file.read()
    with tempfile.TemporaryDirectory(prefix="home-") as home, Hub({"small/llama": files}, HUB_RATE) as hub:
        try:
            program = os.path.abspath(arguments.girih) if arguments.girih else install(write, home)
            variables = environment(home, program, hub)
            for step in STEPS:
                text, faults = run(step, variables, home)
                write(text)
                failed += [f"{step.title}: {fault}" for fault in faults]
        except (RuntimeError, TimeoutError) as error:
            failed.append(str(error))
    transcript = "# The first half hour\n\n" + "\n".join(pieces)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(transcript)
    else:
        print(transcript)
    for fault in failed:
        print(f"FAILED {fault}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
