# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with compressed gradients: torchrun --nproc-per-node 2 examples/fsdp/train.py

The script is an ordinary one except for octavo.compress, which is called after the last fully_shard. With --replicas 2
(for example on four ranks) parameters are sharded inside a host, and the all-reduce between hosts is compressed.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import octavo


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1)
    replicas = parser.parse_args().replicas
    dist.init_process_group("gloo")
    shards = dist.get_world_size() // replicas
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(0)  # the same model on all ranks
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    handle = octavo.compress(model, "int4+ef", replicas=mesh.get_group("replicate") if replicas > 1 else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(60):
        x = torch.randn(32, 64, generator=data)
        loss = nn.functional.cross_entropy(model(x), x[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    stats = handle.stats()  # on all ranks: it waits for their messages about the last step
    if dist.get_rank() == 0:
        print(f"bytes sent: {stats['wire_bytes']}, in float32: {stats['dense_bytes']}")
        print(f"loss: {sum(losses[:5]) / 5:.3f} -> {sum(losses[-5:]) / 5:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
