"""`python -m girih`: the program of this package."""

import os
import sys

from girih._program import program


def main() -> None:
    """Becomes the program."""
    path = program()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
