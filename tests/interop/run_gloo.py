"""One all_reduce a turn until told otherwise. RESTARTS: the worker of rank 1 fails until
so many restarts have been. STOP: a file; once it is there, all end well together."""
import os
import time

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
turns = 0
while True:
    stop = os.path.exists(os.environ["STOP"]) if "STOP" in os.environ else attempt >= int(os.environ["RESTARTS"])
    t = torch.tensor([1.0, 1.0 if stop else 0.0])
    dist.all_reduce(t)
    assert t[0].item() == world
    if rank == 0 and turns == 0:
        print(f"GROUP attempt {attempt} of {world}", flush=True)
    if turns == 0:
        dist.all_reduce(torch.zeros(1))  # nobody fails before that is said
    turns += 1
    if t[1].item() == world:
        break
    if "STOP" not in os.environ and rank == 1:
        os._exit(3)
    time.sleep(0.05)
dist.destroy_process_group()
# gloo's threads outlive its group and may still hold a tensor: they abort the process if
# the interpreter goes away under them.
os._exit(0)
