"""A worker for the tests with several hosts: meets the others, then works until told.

usage: worker.py DIRECTORY. Says "up rank RANK of WORLD on HOST" once all have met in the
store; ends well when DIRECTORY/stop is there, after a last barrier with the others.
"""
from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import muster

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = muster.Store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=30)
store.barrier("start", world)
print(f"up rank {rank} of {world} on {platform.node()} pid {os.getpid()}", flush=True)
stop = Path(sys.argv[1], "stop")
while not stop.exists():
    time.sleep(0.05)
store.barrier("end", world)
print(f"done rank {rank}", flush=True)
