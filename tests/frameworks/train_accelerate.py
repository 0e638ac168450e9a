"""An Accelerate job as its users write it: train_accelerate.py STATE_DIRECTORY."""
import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(64, 4)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

losses = []
for _ in range(3):
    for a, b in data:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
accelerator.save_state(sys.argv[1])

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everybody = accelerator.gather(weights.unsqueeze(0))
# In one write: the other worker shares the console.
sys.stdout.write(
    f"rank {accelerator.process_index} of {accelerator.num_processes} "
    f"{accelerator.distributed_type.value} {type(model).__name__} steps {len(losses)} "
    f"learned {losses[-1] < losses[0] / 4} same {torch.equal(everybody[0], everybody[-1])} "
    f"run {os.environ.get('TORCHELASTIC_RUN_ID')}\n")
accelerator.end_training()
# gloo's threads may abort an interpreter that goes away under them.
sys.stdout.flush()
os._exit(0)
