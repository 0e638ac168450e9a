"""Real DDP for bench_warm.py: a line a step in $STEPS_FILE.RANK with the time, the attempt, the pid and the size of
the group. With $HOLD_FILE, each worker writes its pid into $STEPS_FILE.up.RANK before its first step and waits for that
file."""
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, path = int(os.environ["RANK"]), os.environ["STEPS_FILE"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
if hold := os.environ.get("HOLD_FILE"):
    with open(f"{path}.up.{rank}", "w") as f:
        f.write(f"{os.getpid()}\n")
    while not os.path.exists(hold):
        time.sleep(0.05)
out = open(f"{path}.{rank}", "a", buffering=1)
while True:
    opt.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    opt.step()
    out.write(f"{time.time():.6f} {attempt} {os.getpid()} {dist.get_world_size()}\n")
    time.sleep(0.005)
