# SPDX-License-Identifier: Apache-2.0
"""What the tests of FSDP2 share: a model with parameters of every kind, its shards, and its steps."""

import hashlib

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

import octavo


class Block(nn.Module):
    """A block of odd sizes: it needs padding on any number of ranks, and one parameter has fewer rows than there are
    ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 101)
        self.norm = nn.LayerNorm(101)
        self.narrow = nn.Linear(101, 64)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.norm(torch.relu(self.wide(x)))) * self.scale


class TiedAndUnused(nn.Module):
    """A model with tied parameters in the root, one that is never used, and one whose gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 64)
        nn.init.normal_(self.embedding.weight, std=0.1)  # with torch's 1.0 a tied head knows each token from the start
        self.blocks = nn.Sequential(Block(), Block())
        self.silent = nn.Parameter(torch.randn(65, 64))
        self.unused = nn.Linear(64, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embedding(tokens))
        return self.head(x) + 0 * (x @ self.silent.T).sum()


def batch_of(rank: int, step: int) -> Tensor:
    return torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(100 * step + rank))


def shard(model: nn.Module, **options: object) -> FSDPModule:
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def whole(tensor: Tensor) -> Tensor:
    """Returns the whole tensor without `full_tensor`, which may corrupt the heap on Gloo (HACKING.md, Layers).
    `OwnPart.whole` of octavo.zero does without it too."""
    if not isinstance(tensor, DTensor):
        return tensor
    part = tensor.to_local()
    for axis, placement in reversed(list(enumerate(tensor.placements))):
        if placement.is_shard():
            group = tensor.device_mesh.get_group(axis)
            parts = [part] * group.size()
            dist.all_gather_object(parts, part, group=group)
            part = torch.cat(parts, placement.dim)
    return part


def digest(model: nn.Module) -> str:
    """Returns a digest of the parameters as a rank gathers them."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(whole(parameter.detach()).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def backward(model: nn.Module, rank: int, step: int) -> float:
    tokens = batch_of(rank, step)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    return loss.item()


def step_once(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> float:
    optimizer.zero_grad()
    loss = backward(model, rank, step)
    optimizer.step()
    return loss


def tensors_of(state: dict) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def refuse_momenta(handle: octavo.Handle) -> None:
    weight = handle.parameters[0]
    attempts = (
        lambda: handle.set_momentum({weight: (torch.zeros_like(weight), torch.ones_like(weight))}, 0.9),
        lambda: handle.keep_own_momenta([weight], 0.9, 0.99),
        lambda: handle.keep_own_updates({weight: torch.ones_like(weight)}, 0.9),
    )
    for attempt in attempts:
        with pytest.raises(NotImplementedError, match="has only a shard of the averages"):
            attempt()


def make(plan: str, **options: object) -> tuple[FSDPModule, octavo.Handle, torch.optim.Optimizer]:
    model = shard(TiedAndUnused(), **options)
    return model, octavo.compress(model, plan), torch.optim.SGD(model.parameters(), lr=0.05)
