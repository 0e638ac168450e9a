"""Nodes whose words are read as they come: on a terminal, or in a log."""
from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from patience import clock
from run_job import free_port  # noqa: F401 (for whoever starts nodes here)

ROOT = Path(__file__).resolve().parents[2]
MUSTER = str(ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster")


class Screen:
    """A node whose stderr is a terminal; what it wrote, as it came."""

    def __init__(self, argv: list[str], columns: int = 0, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 0, columns, 0, 0))
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave,
                                        env=dict(os.environ, TERM="xterm") | env)
        os.close(slave)
        self.text = ""

    def read(self, until: str, timeout: float = 60) -> str:
        """Everything so far, as soon as the pattern is in it."""
        deadline = clock() + timeout
        while not re.search(until, self.text):
            left = deadline - clock()
            assert left > 0, f"no {until!r} in {self.text!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode()
                except OSError:  # the other end is closed
                    assert re.search(until, self.text), self.text
        return self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def screen():
    made = []

    def make(*args, **how) -> Screen:
        made.append(Screen(*args, **how))
        return made[-1]

    yield make
    for s in made:
        s.close()
