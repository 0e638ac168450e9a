"""DDP with asynchronous checkpoints of torch.distributed.checkpoint: train_dcp.py DIRECTORY thread|process.
The first attempt saves after step 4, trains on to step 8 and dies; the next one goes on from the checkpoint."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel


def main(where, how):
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step, saving = 0, None
    if attempt:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)), step=0)
        dcp.load(state, checkpoint_id=where)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
    began = step
    while step < 8:
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        step += 1
        if step == 4:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)), step=step)
            saving = dcp.async_save(state, checkpoint_id=where, process_group=dist.new_group(backend="gloo"),
                                    async_checkpointer_type=AsyncCheckpointerType(how))
    if saving:
        saving.result()
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    os.write(1, f"TRAINED rank {rank} from {began} to {step}: {total!r}\n".encode())  # one write: a console for two
    dist.barrier()
    if not attempt:
        os.kill(os.getpid(), 9)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # gloo's threads may abort an interpreter that goes away under them
