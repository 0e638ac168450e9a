"""The ways in which a worker of a test fails when it is told to: see verdict_worker.py and trials/culprit_worker.py."""
import ctypes
import os
import signal
import sys


def load(shard):
    raise RuntimeError(f"bad data shard {shard}")


def eat():
    hog = []
    while True:
        hog.append(bytearray(b"x") * (8 << 20))


def garbage():
    sys.stderr.buffer.write(b"\x1b[2J\xff\x00 over and out \x1b]0;title\x07\n")
    sys.stderr.flush()
    os._exit(3)


WAYS = {
    "raise": lambda: load(17),
    "exit": lambda: os._exit(7),
    "segv": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "oom": eat,
    "garbage": garbage,
    "none": lambda: None,
}


def fail(how):
    WAYS[how]()
