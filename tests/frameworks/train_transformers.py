"""A job of Hugging Face's Trainer with a tiny model of random weights: train_transformers.py
OUTPUT_DIRECTORY. In its first attempt rank 1 dies after the checkpoint of step 4, and the
next attempt goes on from there."""
import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Sentences(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        words = torch.arange(i, i + 12) % 50
        return {"input_ids": words, "labels": words}


class Dies(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 5 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), 9)


set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
args = TrainingArguments(sys.argv[1], max_steps=8, per_device_train_batch_size=2, save_steps=4, save_strategy="steps",
                         logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
                         ddp_backend="gloo")
trainer = Trainer(model=model, args=args, train_dataset=Sentences(), callbacks=[Dies()])
last = get_last_checkpoint(sys.argv[1]) if os.path.isdir(sys.argv[1]) else None
trainer.train(resume_from_checkpoint=last)
total = sum(p.detach().double().sum().item() for p in model.parameters())
# In one write: the other worker shares the console.
sys.stdout.write(f"rank {args.process_index} of {args.world_size} {type(trainer.model_wrapped).__name__} "
                 f"from {os.path.basename(last or 'nothing')} step {trainer.state.global_step} sum {total:.10f}\n")
torch.distributed.destroy_process_group()
# gloo's threads may abort an interpreter that goes away under them.
sys.stdout.flush()
os._exit(0)
