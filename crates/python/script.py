#!python
"""The script `girih` of the wheel: becomes the program of the package, without an import of its library."""

import os
import sys
from importlib.machinery import PathFinder

# Beside the folder of this file are packages that were installed with `pip install --target`.
beside = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
package = PathFinder.find_spec("girih", [beside, *sys.path])
if package is None or package.origin is None:
    sys.exit("girih: the package girih is not installed for this Python")
program = os.path.join(os.path.dirname(package.origin), "girih")
try:
    os.execv(program, sys.argv)
except OSError as error:
    sys.exit(f"girih: {program} cannot be run: {error.strerror}; install the package again")
