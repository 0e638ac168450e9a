"""The demo's job with PyTorch: a small model under DistributedDataParallel on the CPU."""
from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("DEMO_STEPS", "60"))


def say(line: str) -> None:
    """One write for one line: print() in an unbuffered interpreter makes two."""
    os.write(1, (line + "\n").encode())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    checkpoint = Path(sys.argv[1])
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    say(f"rank {rank} of {world} pid {os.getpid()} from step {start}")
    generator = torch.Generator().manual_seed(rank)
    for step in range(start + 1, STEPS + 1):
        x = torch.randn(64, 8, generator=generator)
        loss = torch.nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            part = checkpoint.with_suffix(".part")
            torch.save({"step": step, "model": model.state_dict(),
                        "optimizer": optimizer.state_dict()}, part)
            part.rename(checkpoint)
            say(f"step {step}/{STEPS} loss {loss.item():.4f}")
    dist.barrier()
    if rank == 0:
        say("trained")
    dist.destroy_process_group()
    # gloo's threads outlive its group and may still hold a tensor: they abort the process
    # if the interpreter goes away under them.
    os._exit(0)


main()
