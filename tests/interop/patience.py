"""A clock for limits: how long a machine with nothing else to do would have had.

A limit is there to end a wait for something that will not come. By the wall clock it also ends
one for something that would have come, had forty other programs not wanted the same two cores.
So a second during which more is ready to run than there are cores counts for less.
"""
from __future__ import annotations

import os
import subprocess
import threading
import time

LEAST = 1 / 30  # However crowded it is, some day a limit must end.


def share() -> float:
    """The part of a core that one more program would get just now."""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    cores = len(os.sched_getaffinity(0))
    return max(LEAST, min(1.0, cores / max(1, running)))


class Clock:
    """Looks how crowded it is twice a second. In a forked child nobody looks any more, and
    seconds count as they did last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at, self.sum, self.share = time.monotonic(), 0.0, share()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while True:
            time.sleep(0.5)
            now = share()
            with self.lock:
                self.forward()
                self.share = now

    def forward(self) -> float:
        wall = time.monotonic()
        self.sum += (wall - self.at) * self.share
        self.at = wall
        return self.sum

    def __call__(self) -> float:
        with self.lock:
            return self.forward()


clock = Clock()  # seconds, as time.monotonic() has them, of a machine at rest


def patient(method):
    """A method of Popen whose `timeout` counts by `clock`. Both of them can be called again."""
    def call(self, *args, timeout=None, **kwargs):
        if timeout is None:
            return method(self, *args, **kwargs)
        by = clock() + timeout
        left = timeout
        while True:
            try:
                return method(self, *args, timeout=left, **kwargs)
            except subprocess.TimeoutExpired as e:
                left = by - clock()
                if left <= 0:
                    e.timeout = timeout
                    raise
                args = ()  # What communicate() has to write, it has.
                kwargs.pop("input", None)
    return call


def patient_wait(method):
    call = patient(method)
    return lambda self, timeout=None: call(self, timeout=timeout)


def patient_communicate(method):
    call = patient(method)
    return lambda self, input=None, timeout=None: call(self, input, timeout=timeout)


def install() -> None:
    """Makes subprocess.run() and Popen patient in this process."""
    subprocess.Popen.wait = patient_wait(subprocess.Popen.wait)
    subprocess.Popen.communicate = patient_communicate(subprocess.Popen.communicate)
