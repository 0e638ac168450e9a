"""A worker that trains with real DistributedDataParallel over gloo for a few steps.

Says "trained RANK of WORLD over INTERFACE" if all ranks end with the same weights."""
from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
everybody = [torch.empty_like(mine) for _ in range(world)]
dist.all_gather(everybody, mine)
assert all(torch.equal(mine, other) for other in everybody)
print(f"trained {rank} of {world} over {os.environ.get('GLOO_SOCKET_IFNAME')}", flush=True)
dist.barrier()
dist.destroy_process_group()
# gloo's threads outlive that (torch 2.13). One that wants the GIL while the interpreter is taken
# down aborts the process, under torchrun too; so it is not taken down.
os._exit(0)
