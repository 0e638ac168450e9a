"""A small DDP training with a checkpoint. Prints every loss and, at the end, the
parameters, to the last bit. Environment: STEPS, CKPT; KILL=<rank>@<step>: that worker
kills itself there in its first attempt; PAUSE: a file that a step waits for, once (after
step 1), so that a test can see jobs overlap."""
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps, path = int(os.environ["STEPS"]), os.environ["CKPT"]
dist.init_process_group("gloo")
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
# DDP would lay its buckets out anew after the first step, so that a run that begins in
# the middle forms its sums in another order; looking for unused parameters it does not.
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)),
                                find_unused_parameters=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    first = saved["step"]
for step in range(first, steps):
    if os.environ.get("KILL") == f"{rank}@{step}" and not os.path.exists(path + ".killed"):
        open(path + ".killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    gen = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 8, generator=gen)
    loss = (model(x) - x.sum(1, keepdim=True).sin()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"LOSS {step} {(total.item() / world).hex()}", flush=True)
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step + 1}, path + ".new")
        os.replace(path + ".new", path)
    while step == 1 and "PAUSE" in os.environ and not os.path.exists(os.environ["PAUSE"]):
        time.sleep(0.02)
    dist.barrier()
if rank == 0:
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    print("PARAMETERS", *(v.hex() for v in values), flush=True)
dist.destroy_process_group()
# gloo's threads outlive its group and may still hold a tensor: they abort the process if
# the interpreter goes away under them.
os._exit(0)
