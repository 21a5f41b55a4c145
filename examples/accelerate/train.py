# SPDX-License-Identifier: Apache-2.0
"""Accelerate with compressed gradients: torchrun --nproc-per-node 2 examples/accelerate/train.py

The script is an ordinary one except for octavo.compress, which is called after prepare() has wrapped the model in
DistributedDataParallel.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import octavo


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    inputs = torch.randn(1280, 64)
    data = DataLoader(TensorDataset(inputs, inputs[:, :8].argmax(1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    handle = octavo.compress(model, "int4+ef", optimizer=optimizer)

    losses = []
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())

    stats = handle.stats()
    accelerator.print(f"bytes sent: {stats['wire_bytes']}, in float32: {stats['dense_bytes']}")
    accelerator.print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
