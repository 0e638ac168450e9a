"""Ports for programs that have to be told one. They lie below those that the kernel gives to
clients and to whoever binds port 0, and none is given out twice while tests run side by side:
a port that was merely free a moment ago is soon another test's. Where the turn begins depends on
the checkout, so that tests of two of them can run on one machine."""
from __future__ import annotations

import fcntl
import socket
import zlib
from pathlib import Path

TURN = Path(__file__).resolve().parents[2] / "build" / "next-port"
FIRST, LAST = 12000, 28999  # torch's own, 29400 and 29500, are not among them
BEGIN = FIRST + zlib.crc32(str(TURN).encode()) % 16 * 1000


def free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            return False
        return True


def free_ports(n: int) -> list[int]:
    found = []
    with TURN.open("a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        port = int(f.read() or BEGIN)
        while len(found) < n:
            if free(port):
                found.append(port)
            port = port + 1 if port < LAST else FIRST
        f.truncate(0)
        f.write(str(port))
    return found


def free_port() -> int:
    return free_ports(1)[0]
