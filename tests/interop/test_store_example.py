"""examples/store_barrier.c, with PyTorch processes in some of the places."""
from __future__ import annotations

import subprocess
import sys

import pytest

from ports import free_port
from store_cli import BUILD

PEER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
host, port, rank, size = sys.argv[1], *map(int, sys.argv[2:])
s = TCPStore(host, port, size, rank == 0, timeout=timedelta(seconds=60))
s.set(f"word/{rank}", f"hello from rank {rank}")
s.barrier("all have written", size, timedelta(seconds=60))
for i in range(size):
    print(f"{i} says: {s.get(f'word/{i}').decode()}")
if s.add("gone", 1) == size:
    s.set("all gone", "1")
if rank == 0:
    s.wait(["all gone"], timedelta(seconds=60))
"""


@pytest.mark.parametrize("who", ["cccc", "cpcp", "pc"])
def test_example(who):
    port = free_port()
    procs = []
    for rank, kind in enumerate(who):
        program = {"c": [BUILD / "examples" / "example_store_barrier"],
                   "p": [sys.executable, "-c", PEER]}[kind]
        procs.append(subprocess.Popen(
            [*program, "localhost", str(port), str(rank), str(len(who))],
            stdout=subprocess.PIPE, text=True))
    want = "".join(f"{i} says: hello from rank {i}\n" for i in range(len(who)))
    try:
        for p in procs:
            assert p.communicate(timeout=100)[0] == want
            assert p.returncode == 0
    finally:
        for p in procs:
            p.kill()
            p.wait()
