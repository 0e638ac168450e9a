"""Real DDP for bench_warm.py: a line a step in $STEPS_FILE.RANK with the time, the attempt
and the pid; ends when $STEPS_FILE.stop is there, all together."""
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
out = open(f"{path}.{rank}", "a", buffering=1)
while True:
    stop = torch.tensor([1.0 if os.path.exists(path + ".stop") else 0.0])
    opt.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    opt.step()
    dist.all_reduce(stop)
    out.write(f"{time.time():.6f} {attempt} {os.getpid()} {dist.get_world_size()}\n")
    if stop.item() > 0:
        break
    time.sleep(0.005)
dist.destroy_process_group()
# gloo's threads outlive its group and may still hold a tensor: they abort the process if
# the interpreter goes away under them.
os._exit(0)
