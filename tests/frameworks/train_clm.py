"""A language model as transformers' run_clm.py trains one: texts by datasets, tokenized and cut into blocks, Trainer,
perplexity. The model is tiny and the tokenizer made here, so that nothing is downloaded: train_clm.py OUTPUT_DIRECTORY."""
import math
import os
import sys
import time

before = len(sys.modules)  # what a warm interpreter had imported

import datasets
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast, Trainer, TrainingArguments,
                          default_data_collator, set_seed)

BLOCK = 16
datasets.disable_progress_bars()
set_seed(0)
words = "one two three four five six seven eight nine ten".split()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(
    models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, unk_token="[UNK]")), unk_token="[UNK]")
tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
raw = Dataset.from_dict({"text": [" ".join(words[(i + k) % 10] for k in range(24)) for i in range(64)]})


def blocks(rows):
    ids = [i for row in tokenizer(rows["text"])["input_ids"] for i in row]
    cut = [ids[at:at + BLOCK] for at in range(0, len(ids) // BLOCK * BLOCK, BLOCK)]
    return {"input_ids": cut, "labels": [list(c) for c in cut]}


data = raw.map(blocks, batched=True, remove_columns=["text"])
model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=len(tokenizer), n_positions=BLOCK, n_embd=16, n_layer=1,
                                                    n_head=2))
args = TrainingArguments(sys.argv[1], max_steps=4, per_device_train_batch_size=4, save_strategy="no",
                         logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=0, ddp_backend="gloo")
trainer = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(8)),
                  processing_class=tokenizer, data_collator=default_data_collator)
trainer.train()
perplexity = math.exp(trainer.evaluate()["eval_loss"])
sys.stdout.write(f"rank {args.process_index} of {args.world_size} blocks {len(data)} step {trainer.state.global_step} "
                 f"learns {1 < perplexity < 12}\n")
sys.stdout.write(f"imported {len(sys.modules) - before} modules, {time.process_time():.1f} s of CPU\n")
sys.stdout.flush()
torch.distributed.destroy_process_group()
# gloo's threads may abort an interpreter that goes away under them.
os._exit(0)
