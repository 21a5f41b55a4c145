# SPDX-License-Identifier: Apache-2.0
"""What the tests of compressed DDP share: models, their batches and steps, and digests of all bits."""

import hashlib
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo


class OddShapes(nn.Module):
    """A model with 0-dim, empty, odd-sized, zero-gradient, tied and unused parameters."""

    def __init__(self, unused: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 64)
        self.wide = nn.Linear(64, 101, bias=True)
        self.norm = nn.LayerNorm(101)
        self.narrow = nn.Linear(101, 64)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0))
        self.silent = nn.Parameter(torch.randn(64, 64))
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embedding.weight
        if unused:
            self.unused = nn.Linear(64, 64)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.narrow(self.norm(torch.relu(self.wide(x)))) * self.scale + 0 * (x @ self.silent)
        return self.head(x + self.empty.sum())


class Switch(nn.Module):
    """A model whose second layer can be left unused."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x, use_b):
        return self.b(self.a(x)) if use_b else self.a(x)


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(100 * step + rank))


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def digest(model: nn.Module, grads: bool = False) -> str:
    tensors = (parameter.grad if grads else parameter for parameter in model.parameters())
    return digest_of(tensor for tensor in tensors if tensor is not None)


def wrap(*, unused: bool = False, dtype: torch.dtype = torch.float32, **ddp_options) -> DistributedDataParallel:
    return DistributedDataParallel(
        OddShapes(unused).to(dtype), bucket_cap_mb=0.02, find_unused_parameters=unused, **ddp_options
    )


def make(plan: str, **options):
    model = wrap(**options)
    return model, octavo.compress(model, plan), torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    tokens = batch_of(rank, step)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def step_once(model, optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    optimizer.step()


def save_states(rank: int, plan: str) -> dict:
    model, handle, optimizer = make(plan)
    for step in range(2):
        step_once(model, optimizer, rank, step)
    return {"model": model.module.state_dict(), "handle": handle.state_dict()}


def resume_on_another_number_of_ranks(rank: int, plan: str, saved: list[dict]) -> tuple[str, dict]:
    model, handle, optimizer = make(plan)
    model.module.load_state_dict(saved[0]["model"])
    states = [one["handle"] for one in saved]
    with pytest.raises(ValueError, match="the list of the states of all 2 ranks"):
        handle.load_state_dict(states[0])
    with pytest.raises(ValueError, match=r"\[handle.load_state_dict\] there are two states of rank 0"):
        handle.load_state_dict([states[0], states[0]])
    with pytest.raises(ValueError, match="two states of rank 1"):
        handle.load_state_dict([*states, states[1]])
    with pytest.raises(ValueError, match="a state is of rank 2, and those of a world of 2 are of ranks below 2"):
        handle.load_state_dict([*states, {**states[1], "rank": 2}])
    handle.load_state_dict(states)
    loaded = handle.state_dict()
    assert loaded["step"] == 2
    for step in range(2, 5):
        step_once(model, optimizer, rank, step)
    return digest(model), loaded
