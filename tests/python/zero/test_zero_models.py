# SPDX-License-Identifier: Apache-2.0
"""Models of other kinds than those of zero_runs are trained as by DistributedDataParallel, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_runs import adamw, average_gradients

import octavo


class Counting(nn.Module):
    """A model whose forward pass uses a buffer that it has just written to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes.add_(1.5)
        return self.layer(x) * (1 + 0.1 * self.passes)


class CountingByViews(Counting):
    """Its forward pass uses views of a buffer before it writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = torch.arange(16.0).view(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.passes.split(1)
        variance, mean = torch.var_mean(self.passes.t(), 1)
        x = self.layer(x) * torch.exp(-0.1 * first) * (second + 1) / (1 + variance) * torch.tanh(mean)
        self.passes.mul_(1.1)
        return x


class Nested(nn.Module):
    """A model whose modules take and return jagged tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.nested.nested_tensor(list(x.split([1, 3])), layout=torch.jagged)).values()


def rows(rank: int, step: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


class Views(nn.Module):
    """A model that adds up views of its parameters: autograd gives two of them gradients in one memory, and a third one
    a gradient in the memory that the layer before still has to read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.tall, self.wide = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 16))
        self.flat = nn.Parameter(torch.randn(32))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) + self.flat.view(4, 8)
        return self.last(torch.tanh(x) * (self.tall.view(4, 8) + self.wide.view(4, 8)))


class Conjugate(nn.Module):
    """A model with a parameter whose gradient torch leaves to its reader to negate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.one = nn.Linear(8, 8), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        number = torch.complex(x.mean().reshape(1), self.one).conj()
        return x + (number * torch.complex(torch.ones(1), x.std().reshape(1))).imag


def losses_on(
    rank: int,
    make: Callable[[], nn.Module],
    batch: Callable[[int, int], Tensor],
    config: dict[str, Any] | None,
    accumulation: int = 1,
) -> list[float]:
    """Returns losses of the engine; without a config of DistributedDataParallel, with a step for each batch."""
    torch._dynamo.reset()
    model = make()
    losses = []
    if config is not None:
        engine = octavo.initialize(model, adamw(model), config | {"accumulation_steps": accumulation})
        for number in range(4 * accumulation):
            loss = engine(batch(rank, number)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses
    ddp, optimizer = nn.parallel.DistributedDataParallel(model), adamw(model)
    for number in range(4):
        loss = ddp(batch(rank, number)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_by_sums(rank: int, make: Callable[[], nn.Module], accumulation: int) -> list[float]:
    """Returns losses on `rows` where gradients are added up here: backward() of torch 2.13 adds a later one twice where
    gradients share memory."""
    model = make()
    optimizer, parameters, losses = adamw(model), list(model.parameters()), []
    for number in range(4 * accumulation):
        loss = model(rows(rank, number)).square().mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss / accumulation, parameters), strict=True):
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        if (number + 1) % accumulation == 0:
            average_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [Counting, CountingByViews])
@pytest.mark.parametrize(("stage", "backend"), [(1, "inductor"), (3, "inductor"), (3, "aot_eager")])
def test_a_buffer_that_forward_writes_to_is_used_as_it_was_in_backward(two_ranks, stage, backend, make):
    compiled = two_ranks.run(losses_on, make, rows, {"zero_stage": stage, "compile": backend}, timeout_s=120)
    for got, expected in zip(compiled, two_ranks.run(losses_on, make, rows, None), strict=True):
        assert got == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("config", [{}, {"compile": {"backend": "aot_eager"}}], ids=["eager", "aot_eager"])
def test_modules_of_stage_3_may_return_jagged_tensors(two_ranks, config):
    got = two_ranks.run(losses_on, Nested, rows, {"zero_stage": 3} | config, timeout_s=120)
    for ours, expected in zip(got, two_ranks.run(losses_on, Nested, rows, None), strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("make", [Views, Conjugate])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_may_share_memory_and_be_left_to_be_negated(two_ranks, stage, accumulation, make):
    config = {"zero_stage": stage, "bucket_mib": 0.0001}
    got = two_ranks.run(losses_on, make, rows, config, accumulation)
    for ours, expected in zip(got, two_ranks.run(losses_by_sums, make, accumulation), strict=True):
        assert ours == pytest.approx(expected, rel=1e-5)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.last = nn.ConvTranspose2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.norm(self.first(x)).relu()).relu())


def picture(rank: int, step: int) -> Tensor:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + rank))
    return x.to(memory_format=torch.channels_last if step > 1 else torch.contiguous_format)


@pytest.mark.parametrize(("stage", "backend"), [(1, "inductor"), (3, "inductor"), (3, "aot_eager")])
def test_convolutions_are_trained_as_by_ddp(two_ranks, stage, backend):
    """Inductor copies their weights to channels_last, which must not be before they are whole."""
    config = {"zero_stage": stage, "compile": {"backend": backend}}
    compiled = two_ranks.run(losses_on, Convolutions, picture, config, timeout_s=120)
    for got, expected in zip(compiled, two_ranks.run(losses_on, Convolutions, picture, None), strict=True):
        assert got == pytest.approx(expected, rel=1e-5)
