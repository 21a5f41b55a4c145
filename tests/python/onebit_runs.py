# SPDX-License-Identifier: Apache-2.0
"""What the tests of OneBitAdamW share: small models, one joined to its optimizer, and a step of it."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW


def quadratic(seed: int = 0):
    """Returns a layer, its inputs and what it is to learn from them."""
    torch.manual_seed(seed)
    return nn.Linear(40, 30), torch.randn(64, 40), torch.randn(64, 30)


def wrap(warmup_steps: int = 2, plan: str = "sign+ef", width: int = 64, **options):
    """Returns a model, its handle and its optimizer, which was built before DDP wrapped the model."""
    torch.manual_seed(0)
    module = nn.Linear(width, width, bias=False)
    compress_options = {key: options.pop(key) for key in ("scaler",) if key in options}
    optimizer = OneBitAdamW(module.parameters(), lr=1e-2, warmup_steps=warmup_steps, **options)
    model = DistributedDataParallel(module)
    return model, octavo.compress(model, plan, optimizer=optimizer, **compress_options), optimizer


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
    return model(x).sub(x.roll(1, 1)).square().mean()


def step_once(model, optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    optimizer.step()
