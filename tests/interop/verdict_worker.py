"""A worker of test_verdict.py: real gloo, and one rank that fails the way HOW says in round AT."""
import os
import sys
import time

import torch
import torch.distributed as dist
from ways_to_fail import fail

rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("BEGIN", rank, restart, sys.stderr.isatty(), flush=True)
dist.init_process_group("gloo")
last_words = sys.excepthook  # torch's, which puts the rank before each line


def leave(*error):
    """Tell it as ever, and go: gloo's threads may abort an interpreter that goes away under them."""
    last_words(*error)
    sys.stderr.flush()
    os._exit(1)


sys.excepthook = leave
x = torch.ones(4)
for step in range(int(os.environ.get("STEPS", "100000"))):
    dist.all_reduce(x)
    x /= dist.get_world_size()
    if rank == int(os.environ.get("WHO", "3")) and restart <= int(os.environ.get("AT", "0")) and step == 20:
        fail(os.environ.get("HOW", "raise"))
    time.sleep(0.005)
print("DONE", rank, flush=True)
os._exit(0)  # as in leave()
