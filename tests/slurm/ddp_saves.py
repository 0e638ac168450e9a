"""DDP that saves when it is told to go, and goes on from there: each step is done once, whatever happens."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.environ["PACKAGE"])
import muster  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

where, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
saved = where / "checkpoint.pt"
step = 0
if saved.exists():
    state = torch.load(saved)
    step = state["step"]
    model.load_state_dict(state["model"])
while step < steps:
    model(torch.ones(1, 4)).sum().backward()
    step += 1
    if dist.get_rank() == 0:
        with (where / "steps").open("a") as f:
            f.write(f"{step}\n")
    going = torch.tensor([muster.deadline() is not None])
    dist.all_reduce(going, dist.ReduceOp.MAX)  # all ranks stop after the same step
    if going.item():
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.state_dict()}, saved)
        break
    time.sleep(0.05)
dist.destroy_process_group()
