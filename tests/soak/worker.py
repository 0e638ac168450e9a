"""The soak's job: every worker meets the others again and again, and writes down what it sees.

usage: worker.py DIRECTORY. Leaves DIRECTORY/<host>.<pid> with rank, world and the last step
that the whole group has finished, and one line for each start in DIRECTORY/rounds: whom it
met (a name that the first in the store made up), as which rank of how many. Fails, as a real
job would, when the others are gone.
"""
from __future__ import annotations

import json
import os
import platform
import sys
import time
import uuid
from pathlib import Path

import muster

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(os.environ["MASTER_PORT"])
store = muster.Store(os.environ["MASTER_ADDR"], port, timeout=20)
note = Path(sys.argv[1], f"{platform.node()}.{os.getpid()}")
met = store.compare_set("round", "", str(uuid.uuid4())).decode()
with Path(sys.argv[1], "rounds").open("a") as rounds:  # one write: lines stay whole
    rounds.write(json.dumps({"round": met, "rank": rank, "world": world,
                             "group_rank": int(os.environ["GROUP_RANK"]),
                             "local_rank": int(os.environ["LOCAL_RANK"]),
                             "host": platform.node()}) + "\n")
step = 0
while True:
    step += 1
    if store.add(f"step/{step}", 1) == world:
        store.set(f"done/{step}", "")
    store.wait([f"done/{step}"])
    state = {"rank": rank, "world": world, "step": step, "time": time.time(), "port": port,
             "pid": os.getpid(), "host": platform.node()}
    part = note.with_name(note.name + ".part")
    part.write_text(json.dumps(state))
    part.rename(note)
    if step > 50:
        store.delete_key(f"step/{step - 50}") if rank == 0 else None
        store.delete_key(f"done/{step - 50}") if rank == 0 else None
    time.sleep(0.1)
