"""Limits of all tests: they count the time that a machine at rest would have had."""
from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "interop"))
import patience  # noqa: E402

patience.install()


class Timer:
    """Ends a test that hangs: a signal, which interrupts whatever the main thread waits for."""

    def __init__(self, item, seconds: float) -> None:
        self.by = patience.clock() + seconds
        self.ended = threading.Event()
        self.before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(
            f"Timeout (>{seconds} s of a machine at rest): {item.nodeid}"))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while not self.ended.wait(min(max(self.by - patience.clock(), 0.1), 5)):
            if patience.clock() >= self.by:
                os.kill(os.getpid(), signal.SIGALRM)
                return

    def cancel(self) -> None:
        self.ended.set()
        signal.signal(signal.SIGALRM, self.before)


TIMER = pytest.StashKey[Timer]()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    if settings.timeout and settings.timeout > 0:
        item.stash[TIMER] = Timer(item, settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item):
    if timer := item.stash.get(TIMER, None):
        timer.cancel()
        item.stash[TIMER] = None
    return True
