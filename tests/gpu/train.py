"""A worker of the trials on GPUs: DDP over NCCL (gloo where there is no GPU), a line a step.

What goes wrong is named by FAULT and happens once, in attempt 0, on the rank VICTIM: `hang` (it
stops entering collectives), `mismatch` (it enters another one than the others), `memory` (it asks
for more than the device has; in every attempt).
"""
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CUDA = torch.version.cuda is not None and os.environ["DEVICE"] == "cuda"


def say(**what):
    os.write(1, (json.dumps(what) + "\n").encode())


def fault(kind, device):
    if kind == "hang":
        time.sleep(3600)
    elif kind == "mismatch":
        dist.broadcast(torch.zeros(8, device=device), 0)
    elif kind == "memory" and CUDA:
        free, total = torch.cuda.mem_get_info()
        torch.empty(total + (1 << 30), dtype=torch.uint8, device=device)
    elif kind == "memory":
        torch.empty(1 << 50, dtype=torch.uint8)


def main():
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    started = time.time()
    untouched = not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
    device = torch.device("cuda", local) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    say(event="start", rank=rank, local=local, pid=os.getpid(), attempt=attempt, untouched=untouched, at=started,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"), cpus=sorted(os.sched_getaffinity(0)),
        bus=torch.cuda.get_device_properties(device).pci_bus_id if CUDA and hasattr(
            torch.cuda.get_device_properties(device), "pci_bus_id") else None,
        uuid=str(torch.cuda.get_device_properties(device).uuid) if CUDA else None)
    dist.init_process_group("nccl" if CUDA else "gloo")
    model = DistributedDataParallel(torch.nn.Linear(512, 512).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    kind, victim = os.environ.get("FAULT", ""), int(os.environ.get("VICTIM", "1"))
    for step in range(1, int(os.environ["STEPS"]) + 1):
        if step == 5 and rank == victim and (attempt == 0 or kind == "memory"):
            fault(kind, device)
        loss = model(torch.ones(64, 512, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if CUDA:
            torch.cuda.synchronize()
        time.sleep(0.05)
        say(event="step", rank=rank, step=step, attempt=attempt, at=time.time(), loss=round(loss.item(), 5))
    dist.destroy_process_group()


main()
