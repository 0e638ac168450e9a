"""`python -m muster ...` is `muster ...`, with this Python for the workers."""
from __future__ import annotations

import os
import sys

from ._native import NativeError, command


def main() -> None:
    try:
        program = str(command())
    except NativeError as e:
        sys.exit(str(e))
    # Otherwise the first python3 in PATH would run the workers, not the one asked for.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, [program, *sys.argv[1:]])


main()
