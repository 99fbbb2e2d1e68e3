#!/usr/bin/env python3
"""Record girih in a pseudo-terminal and draw the recording as an SVG.

    record_terminal.py --girih PROGRAM [--output docs/pictures/terminal.svg]

Runs the commands of SCENES with the real program, one after another, in an empty home folder. The
picture shows everything on one screen. Text appears at the time at which the program wrote it; where
animations are off, the whole text is visible at once. Standard library only.
"""

import argparse
import os
import sys
import tempfile
import time
from xml.sax.saxutils import escape

from terminal import PLAIN, PROMPT, Screen, Terminal

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A command, what is typed once a text has appeared, and the exit code.
SCENES = [
    (["girih", "run", "stories260k", "Lily had a red ball.", "--temp", "0", "-n", "48"], [], 0),
    (["girih", "chat", "stories260k", "--temp", "0", "-n", "48"],
     [("> ", "Once there was a dog named Max.\r"), (PROMPT, "/bye\r")], 0),
    (["girih", "verify", "tests/fixtures/qwen3", "--golden", "tests/fixtures/qwen3/golden.safetensors"], [], 0),
    (["girih", "run", "stories260k", "Once upon a time", "-n", "1000"], [], 2),
]

COLUMNS = 104
TYPING = 0.03  # Seconds between the letters of a command.
PAUSE = 0.6  # The longest pause that is kept, in seconds.
TIMEOUT = 120

LETTER, LINE, MARGIN, FONT = 8.43, 19, 18, 14
COLOURS = ["#22272e", "#f47067", "#7fc17f", "#dcb04a", "#6cb6ff", "#dcbdfb", "#76c7c7", "#d6dce4"]
INK, SOFT, PAPER = "#d6dce4", "#8b949e", "#1c2128"


def record(girih):
    """Runs all scenes on one screen."""
    screen = Screen(COLUMNS)
    home = tempfile.mkdtemp(prefix="girih-recording-")
    environment = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    now = 0.0
    for argv, typed, wanted_code in SCENES:
        screen.style = (True, False, 2)
        screen.write("$ ", now)
        screen.style = PLAIN
        for letter in " ".join(quoted(word) for word in argv):
            now += TYPING
            screen.write(letter, now)
        screen.write("\r\n", now)
        program = Terminal([girih, *argv[1:]], environment, REPOSITORY, screen, time.monotonic() - now)
        for wanted, text in typed:
            program.wait_for(wanted, TIMEOUT)
            program.type(text, TYPING)
        code = program.finish(TIMEOUT)
        now = time.monotonic() - program.began
        if code != wanted_code:
            sys.exit(f"{' '.join(argv)} ended with {code}:\n{screen.text()}")
        if screen.column > 0:
            screen.write("\r\n", now)
        screen.write("\r\n", now)
    return screen


def quoted(word):
    return f'"{word}"' if " " in word else word


def shortened(screen):
    """The times of all cells in order, mapped to times without long pauses."""
    times = sorted({cell.at for line in screen.lines for cell in line})
    mapped, now, before = {}, 0.0, 0.0
    for at in times:
        now += min(at - before, PAUSE)
        mapped[at], before = now, at
    return mapped


def runs(line, mapped):
    """Cells with one style and about one time, together: column, text, style, time."""
    found = []
    for column, cell in enumerate(line):
        at = round(mapped[cell.at], 1)
        if found and found[-1][2:] == [cell.style, at]:
            found[-1][1] += cell.letter
        else:
            found.append([column, cell.letter, cell.style, at])
    return [run for run in found if run[1].strip()]


def draw(screen):
    lines = list(screen.lines)
    while lines and not lines[-1]:
        lines.pop()
    mapped = shortened(screen)
    width = int(2 * MARGIN + COLUMNS * LETTER)
    height = 2 * MARGIN + 22 + LINE * len(lines)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="A terminal: girih generates, chats, verifies a model, and refuses a reply that does not fit">',
        "<style>text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:%s;"
        "white-space:pre}.d{fill:%s}.b{font-weight:bold}@keyframes s{from{visibility:hidden}to{visibility:visible}}"
        ".t{animation:s 1ms both}@media (prefers-reduced-motion:reduce){.t{animation:none}}</style>"
        % (FONT, INK, SOFT),
        f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
    ]
    for number, colour in enumerate(["#f47067", "#dcb04a", "#7fc17f"]):
        out.append(f'<circle cx="{MARGIN + 6 + 20 * number}" cy="{MARGIN + 2}" r="6" fill="{colour}"/>')
    for row, line in enumerate(lines):
        y = MARGIN + 22 + LINE * (row + 0.8)
        for column, text, (bold, dim, colour), at in runs(line, mapped):
            column, text = column + len(text) - len(text.lstrip()), text.strip()
            classes = " ".join(["t"] + ["b"] * bold + ["d"] * dim)
            fill = "" if colour is None else f"fill:{COLOURS[colour]};"
            out.append(
                f'<text x="{MARGIN + column * LETTER:.1f}" y="{y:.1f}" class="{classes}" '
                f'textLength="{len(text) * LETTER:.1f}" style="{fill}animation-delay:{at}s">{escape(text)}</text>'
            )
    return "\n".join(out) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description="Record girih in a pseudo-terminal and draw it as an SVG.")
    parser.add_argument("--girih", required=True, help="the program")
    parser.add_argument("--output", default=os.path.join(REPOSITORY, "docs/pictures/terminal.svg"))
    arguments = parser.parse_args()
    screen = record(os.path.abspath(arguments.girih))
    os.makedirs(os.path.dirname(os.path.abspath(arguments.output)), exist_ok=True)
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(draw(screen))
    print(screen.text())


if __name__ == "__main__":
    main()
