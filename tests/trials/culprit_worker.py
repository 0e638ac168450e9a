"""A worker of the trial `culprit`: real DDP on gloo. In attempt n the n-th word of PLAN, how:rank, comes true; after the
last one it trains on until somebody else ends it."""
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
from ways_to_fail import fail  # noqa: E402

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
plan = [word.split(":") for word in os.environ["PLAN"].split(",")]
how, who = plan[attempt] if attempt < len(plan) else ("none", "-1")
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
trainer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000000):
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    trainer.step()
    trainer.zero_grad()
    if step == 3:
        print("TRAINS", rank, attempt, flush=True)
    if step == 10 + attempt and rank == int(who):
        fail(how)
    time.sleep(0.01)
