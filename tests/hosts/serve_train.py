"""A DDP training over gloo whose loss does not depend on how many take part in it.

usage: serve_train.py DIRECTORY. Each step divides the same twelve samples among the workers, in double precision, and
keeps a checkpoint, so that after any loss of machines the losses go on as if nothing had happened. Says
"up rank RANK of WORLD master ADDRESS at TIME" (CLOCK_MONOTONIC, one for all hosts of the rig) before anything else, and
"LOSS STEP VALUE". Ends well when DIRECTORY/stop is there. As a module: reference(steps) trains alone.
"""
import os
import sys
import time

if __name__ == "__main__":
    print(f"up rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} master {os.environ['MASTER_ADDR']} "
          f"at {time.clock_gettime(time.CLOCK_MONOTONIC):.3f}", flush=True)

import torch  # noqa: E402

SAMPLES = 12


def make() -> torch.nn.Module:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def reference(steps: int) -> list[float]:
    model, losses = make(), []
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = batch(step)
        loss = (model(x) - y).pow(2).sum() / SAMPLES
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = sys.argv[1]
    path, stop = os.path.join(where, "checkpoint"), os.path.join(where, "stop")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(make())
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    # One word for all: a checkpoint may be written between two looks at it.
    first = torch.tensor([step])
    dist.broadcast(first, 0)
    assert first.item() == step, f"rank {rank} found step {step}, rank 0 step {first.item()}"
    while True:
        x, y = batch(step)
        loss = (model(x[rank::world]) - y[rank::world]).pow(2).sum() / SAMPLES
        opt.zero_grad()
        (loss * world).backward()  # DDP takes the mean
        opt.step()
        word = torch.tensor([loss.item(), float(os.path.exists(stop))], dtype=torch.float64)
        dist.all_reduce(word)
        step += 1
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
            print(f"LOSS {step - 1} {word[0].item().hex()}", flush=True)
        if word[1].item() > 0:
            break
        time.sleep(0.05)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo's threads may abort an interpreter that goes away under them
