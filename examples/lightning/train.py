# SPDX-License-Identifier: Apache-2.0
"""Lightning with compressed gradients: torchrun --nproc-per-node 2 examples/lightning/train.py

The script is an ordinary one except for CompressGradients, which works with any LightningModule under strategy "ddp"
that has one optimizer. It clips in the place of Trainer(gradient_clip_val=...), which cannot tell error feedback of a
clip.
"""

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import octavo


class CompressGradients(L.Callback):
    """Compresses the gradients of the model that Lightning has wrapped in DistributedDataParallel, and clips them to
    max_norm, unless it is None. Lightning's checkpoints have what the handle keeps for each rank."""

    def __init__(self, plan: str, max_norm: float | None = None):
        self.plan, self.max_norm, self.handle, self.loaded = plan, max_norm, None, None

    def setup(self, trainer, module, stage):
        self.loaded = None  # fit() does not go on with what a test() before it has loaded

    def on_train_start(self, trainer, module):
        scaler = getattr(trainer.precision_plugin, "scaler", None)  # there is one with precision="16-mixed"
        model, optimizer = trainer.strategy.model, trainer.optimizers[0]
        self.handle = octavo.compress(model, self.plan, optimizer=optimizer, scaler=scaler)
        if self.loaded is not None:  # fit() resumes from a checkpoint
            self.handle.load_state_dict(self.loaded)
            self.loaded = None

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.max_norm is not None:
            self.handle.clip_grad_norm_(self.max_norm)

    def state_dict(self):
        """Lightning calls this on all ranks, and writes what rank 0 returns: the states of all ranks."""
        if self.handle is None:
            return {}
        state = self.handle.state_dict()
        on_host = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
        states = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(on_host, states)
        return {"ranks": states}

    def load_state_dict(self, state_dict):
        self.loaded = state_dict["ranks"]


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    L.seed_everything(0)
    inputs = torch.randn(1280, 64)
    data = DataLoader(TensorDataset(inputs, inputs[:, :8].argmax(1)), batch_size=16, shuffle=True)
    model, compression = Classifier(), CompressGradients("int4+ef", max_norm=1.0)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        callbacks=[compression],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, data)
    if trainer.is_global_zero:
        stats, losses = compression.handle.stats(), model.losses
        print(f"bytes sent: {stats['wire_bytes']}, in float32: {stats['dense_bytes']}")
        print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")


if __name__ == "__main__":
    main()
