"""Ties the launcher to the process that asked for it: python _tether.py PARENT COMMAND...

If the parent dies, even by SIGKILL, the launcher gets SIGTERM and ends its workers. Done
here, after the fork, since preparing a child in a threaded parent is not safe.
"""
from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # it died before we were tied to it
os.execv(sys.argv[2], sys.argv[2:])
