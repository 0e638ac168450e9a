"""A Lightning job with a checkpoint, then its continuation: train_lightning.py DIRECTORY."""
import os
import sys
import time

before = len(sys.modules)  # what a warm interpreter had imported

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        a, b = batch
        return torch.nn.functional.mse_loss(self.net(a), b)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(epochs, checkpoint=None):
    x = torch.randn(64, 4)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, logger=False,
        default_root_dir=sys.argv[1], enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8),
                ckpt_path=checkpoint)
    environment = type(trainer.strategy.cluster_environment).__name__
    # In one write: the other worker shares the console.
    sys.stdout.write(f"rank {trainer.global_rank} of {trainer.world_size} {environment} "
                     f"epoch {trainer.current_epoch} step {trainer.global_step}\n")
    return trainer.checkpoint_callback.best_model_path


fit(3, fit(2))
sys.stdout.write(f"imported {len(sys.modules) - before} modules, {time.process_time():.1f} s of CPU\n")
sys.stdout.flush()
# gloo's threads may abort an interpreter that goes away under them.
os._exit(0)
