# SPDX-License-Identifier: Apache-2.0
"""What the tests of the outer loop share: a small model, gradients that differ by rank and step, and its steps."""

from __future__ import annotations

import torch
from ddp_runs import digest_of
from torch import nn

import octavo


class Net(nn.Module):
    """A model with parameters of several sizes and memory formats. `scale` makes ranks begin differently, which Outer
    must undo."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(48, 96)
        self.conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
        self.last = nn.Linear(96, 50)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("count", torch.ones(2) * scale)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(scale)


def give_gradients(model: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def values_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def digest_of_shared(outer: octavo.Outer) -> str:
    """Returns a digest of all bits of the anchors and the momentum."""
    return digest_of(values for _, values in sorted(outer.state_dict()["shared"].items()))


def train(rank: int, steps: int, model: nn.Module | None = None, **options) -> tuple[nn.Module, octavo.Outer]:
    model = Net(1.0 + rank) if model is None else model
    outer = octavo.Outer(model, torch.optim.AdamW(model.parameters(), lr=0.01), timeout_s=30, **options)
    for step in range(steps):
        give_gradients(model, rank, step)
        outer.step()
    return model, outer
