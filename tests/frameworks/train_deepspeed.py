"""A DeepSpeed job as its users write it, on CPUs, with ZeRO's first stage: train_deepspeed.py"""
import os
import sys
import time

before = len(sys.modules)  # what a warm interpreter had imported

import deepspeed
import torch

deepspeed.ops.__compatible_ops__.clear()  # or it would compile an operator in C++
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
x = torch.randn(64, 4)
engine, _, data, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    training_data=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
    config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True})
losses = []
for _ in range(3):
    for a, b in data:
        loss = torch.nn.functional.mse_loss(engine(a), b)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
sys.stdout.write(f"rank {torch.distributed.get_rank()} of {torch.distributed.get_world_size()} "
                 f"{type(engine).__name__} steps {engine.global_steps} learned {losses[-1] < losses[0] / 4}\n")
sys.stdout.write(f"imported {len(sys.modules) - before} modules, {time.process_time():.1f} s of CPU\n")
sys.stdout.flush()
torch.distributed.destroy_process_group()
# gloo's threads may abort an interpreter that goes away under them.
os._exit(0)
