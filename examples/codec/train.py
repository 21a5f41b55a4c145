# SPDX-License-Identifier: Apache-2.0
"""A codec of one's own in a plan: torchrun --nproc-per-node 2 examples/codec/train.py

The first rank builds ``pooled.cpp`` and the others find it built. Each loads it, and a plan can then name the codec.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
import octavo.build


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    octavo.build.load("octavo_example_pooled", [Path(__file__).parent / "pooled.cpp"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64)))
    handle = octavo.compress(model, "pooled:16+ef")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + rank)
    rotation = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(9))).Q
    losses = []
    for _ in range(300):
        x = torch.randn(64, 64)
        loss = (model(x) - x @ rotation).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        stats = handle.stats()
        print(f"loss: {losses[0]:.4f} -> {losses[-1]:.4f}")
        print(f"bytes sent: {stats['wire_bytes']}, in float32: {stats['dense_bytes']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
