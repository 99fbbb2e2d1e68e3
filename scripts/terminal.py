"""Runs a program in a pseudo-terminal, types into it, and keeps what its screen shows.

The screen knows what girih and its line editor send: text, line feeds, carriage returns, cursor
moves, erasing, and colours. It keeps every line, so nothing scrolls away. Each cell remembers when it
was written, so that a recording can show the text as it came. Standard library only.
"""

import codecs
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from fcntl import ioctl

COLUMNS = 100
ROWS = 40

# The texts of a line that was erased again, such as a progress bar, that a screen keeps.
ERASED_MAX = 400

PLAIN = (False, False, None)  # bold, dim, colour

# The next prompt of a conversation of girih. The line editor returns to the first column before it.
PROMPT = r"\n\r*> "

CONTROL = re.compile(r"\x1b\[([?>=]?)([0-9;:]*)([@-~])|\x1b\]([^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78cDEHM]")


class Cell:
    """A character with its style and the second at which it was written."""

    __slots__ = ("letter", "style", "at")

    def __init__(self, letter=" ", style=PLAIN, at=0.0):
        self.letter, self.style, self.at = letter, style, at


class Screen:
    """What a terminal of a fixed width shows, and every line above it."""

    def __init__(self, columns=COLUMNS):
        self.columns = columns
        self.lines = [[]]
        self.row = self.column = 0
        self.style = PLAIN
        self.erased = []
        self.pending = ""

    def write(self, text, at=0.0):
        """Shows text that arrived at a time."""
        text, self.pending = self.pending + text, ""
        place = 0
        while place < len(text):
            letter = text[place]
            if letter == "\x1b":
                match = CONTROL.match(text, place)
                if not match and len(text) - place < 64:
                    self.pending = text[place:]  # The rest of the code has not arrived yet.
                    return
                place = match.end() if match else place + 1
                if match and match[3]:
                    self.control(match[1], match[2], match[3])
                continue
            place += 1
            self.letter(letter, at)

    def letter(self, letter, at):
        if letter == "\n":
            self.row += 1
            self.line()
        elif letter == "\r":
            self.column = 0
        elif letter == "\b":
            self.column = max(self.column - 1, 0)
        elif letter == "\t":
            self.column = (self.column // 8 + 1) * 8
        elif letter >= " " and letter != "\x7f":
            if self.column >= self.columns:
                self.row, self.column = self.row + 1, 0
            line = self.line()
            if self.column == 0 and len(line) > 0:
                self.remember(line)
            line.extend(Cell() for _ in range(len(line), self.column + 1))
            line[self.column] = Cell(letter, self.style, at)
            self.column += 1

    def line(self):
        while len(self.lines) <= self.row:
            self.lines.append([])
        return self.lines[self.row]

    def control(self, private, numbers, kind):
        values = [int(number) if number else 0 for number in re.split("[;:]", numbers)]
        count = max(values[0], 1)
        if private:
            return
        if kind == "A":
            self.row = max(self.row - count, 0)
        elif kind == "B":
            self.row += count
            self.line()
        elif kind == "C":
            self.column += count
        elif kind == "D":
            self.column = max(self.column - count, 0)
        elif kind == "G":
            self.column = count - 1
        elif kind == "K":
            line = self.line()
            self.remember(line)
            if values[0] == 0:
                del line[self.column:]
            elif values[0] == 2:
                line.clear()
        elif kind == "J" and values[0] == 0:
            del self.line()[self.column:]
            del self.lines[self.row + 1:]
        elif kind == "m":
            for value in values:
                self.colour(value)

    def colour(self, value):
        bold, dim, colour = self.style
        if value == 0:
            bold, dim, colour = PLAIN
        elif value == 1:
            bold = True
        elif value == 2:
            dim = True
        elif value == 22:
            bold = dim = False
        elif 30 <= value <= 37 or 90 <= value <= 97:
            colour = value % 10
        elif value == 39:
            colour = None
        self.style = (bold, dim, colour)

    def remember(self, line):
        """Keeps the text of a line that is about to be overwritten."""
        text = text_of(line)
        if text and len(self.erased) < ERASED_MAX and text not in self.erased[-1:]:
            self.erased.append(text)

    def text(self):
        """All lines as text, without spaces at their ends."""
        return "\n".join(text_of(line) for line in self.lines).rstrip("\n")


def text_of(line):
    return "".join(cell.letter for cell in line).rstrip()


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, argv, environment, folder=None, screen=None, began=None):
        self.screen = screen or Screen()
        self.began = time.monotonic() if began is None else began
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.code = None
        self.received = ""
        self.seen = 0
        self.process, self.end = pty.fork()
        if self.process == 0:
            try:
                ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, self.screen.columns, 0, 0))
                if folder:
                    os.chdir(folder)
                os.execvpe(argv[0], argv, environment)
            finally:
                os._exit(127)

    def read(self, seconds):
        """Shows what the program writes within some seconds; returns whether it wrote."""
        if self.code is not None:
            return False
        ready, _, _ = select.select([self.end], [], [], max(seconds, 0))
        if not ready:
            return False
        try:
            data = os.read(self.end, 1 << 16)
        except OSError:  # The program has closed its terminal.
            data = b""
        if not data:
            self.close()
            return False
        text = self.decoder.decode(data)
        self.received += CONTROL.sub("", text)
        self.screen.write(text, time.monotonic() - self.began)
        return True

    def wait_for(self, pattern, timeout):
        """Waits until what came after the last match matches; fails if it does not in time."""
        end = time.monotonic() + timeout
        while True:
            found = re.compile(pattern, re.MULTILINE).search(self.received, self.seen)
            if found:
                self.seen = found.end()
                return
            left = end - time.monotonic()
            if self.code is not None or left <= 0:
                self.stop()
                raise TimeoutError(f"{pattern!r} did not appear:\n{self.screen.text()}")
            self.read(min(left, 0.2))

    def type(self, text, pause=0.0):
        """Types a text, letter by letter if there is a pause."""
        for letter in text:
            if self.code is not None:
                raise TimeoutError(f"the program ended before {text!r} was typed:\n{self.screen.text()}")
            os.write(self.end, letter.encode())
            until = time.monotonic() + pause
            while self.code is None and time.monotonic() < until:
                self.read(until - time.monotonic())

    def finish(self, timeout):
        """Waits for the program's end and returns its exit code; fails if it does not end in time."""
        end = time.monotonic() + timeout
        while self.code is None:
            left = end - time.monotonic()
            if left <= 0:
                self.stop()
                raise TimeoutError(f"the program did not end within {timeout} s:\n{self.screen.text()}")
            self.read(min(left, 0.2))
        return self.code

    def close(self):
        """Takes the exit code of a program that has closed its terminal; ends it if it stays."""
        for waited in range(101):
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                break
            if waited == 100:
                os.kill(self.process, signal.SIGKILL)
                _, status = os.waitpid(self.process, 0)
            else:
                time.sleep(0.05)
        self.code = os.waitstatus_to_exitcode(status)
        os.close(self.end)

    def stop(self):
        """Ends the program if it still runs."""
        if self.code is None:
            os.kill(self.process, signal.SIGKILL)
            self.close()
