# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters share memory without being one parameter: trained right, or refused."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from zero_runs import average_gradients, engine_of, error_of, inputs_of


class Pair(nn.Module):
    """A model of two tensors of 16 elements, of which ``second`` may be a buffer or a frozen parameter."""

    def __init__(self, first: Tensor, second: Tensor, kind: str = "trained"):
        super().__init__()
        self.first = nn.Parameter(first)
        if kind == "buffer":
            self.register_buffer("second", second)
        else:
            self.second = nn.Parameter(second, requires_grad=kind == "trained")

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.first).tanh() @ self.second.view(4, 4)


def same_range() -> Pair:
    memory = torch.linspace(-1, 1, 16)
    return Pair(memory.view(4, 4), memory)


def overlap() -> Pair:
    memory = torch.linspace(-1, 1, 24)
    return Pair(memory[:16].view(4, 4), memory[8:])


def one_array() -> Pair:
    """Both tensors are of one array, of which each has another part."""
    memory = numpy.linspace(-1, 1, 24, dtype=numpy.float32)
    return Pair(torch.from_numpy(memory[:16]).view(4, 4), torch.from_numpy(memory[8:]))


def with_a_buffer() -> Pair:
    memory = torch.linspace(-1, 1, 16)
    return Pair(memory.view(4, 4), memory, "buffer")


def with_a_frozen_one() -> Pair:
    memory = torch.linspace(-1, 1, 24)
    return Pair(memory[:16].view(4, 4), memory[8:], "frozen")


def beside_each_other() -> Pair:
    memory = torch.linspace(-1, 1, 33)
    return Pair(memory[:16].view(4, 4), memory[16:32])


def values_by_engine(rank: int, make: Any, config: dict[str, Any]) -> list[list[float]]:
    model = make()
    engine = engine_of(model, **config)
    for _ in range(3):
        engine.backward(engine(inputs_of(rank)).square().mean())
        engine.step()
    with engine.gathered():
        return [tensor.flatten().tolist() for tensor in (model.first, model.second)]


def values_by_torch(rank: int, make: Any) -> list[list[float]]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs_of(rank)).square().mean().backward()
        average_gradients(model)
        optimizer.step()
    return [tensor.flatten().tolist() for tensor in (model.first, model.second)]


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (same_range, {"stage": 1}),
        (same_range, {"stage": 2}),
        (same_range, {"stage": 1, "compile": "aot_eager"}),
        (with_a_buffer, {"stage": 1}),
        (with_a_frozen_one, {"stage": 2}),
        (beside_each_other, {"stage": 3}),
    ],
)
def test_what_is_shared_is_trained_as_by_torch(two_ranks, make, config):
    expected = two_ranks.run(values_by_torch, make)
    for ours, theirs in zip(two_ranks.run(values_by_engine, make, config), expected, strict=True):
        for values, of_torch in zip(ours, theirs, strict=True):
            assert values == pytest.approx(of_torch, rel=1e-5)


ONE_PARAMETER = "make them one parameter, by assigning the parameter of one module to the other"


@pytest.mark.parametrize(
    ("make", "config", "words"),
    [
        (overlap, {"stage": 1}, f"but ranks would own different elements where they overlap: {ONE_PARAMETER}"),
        (one_array, {"stage": 2}, f"but ranks would own different elements where they overlap: {ONE_PARAMETER}"),
        (overlap, {"stage": 1, "gather": "bf16"}, f"which gather would separate: {ONE_PARAMETER}"),
        (
            same_range,
            {"stage": 2, "gather": "bf16"},
            f"which gather would separate: {ONE_PARAMETER}, or use stage 1 or 2 without gather",
        ),
        (overlap, {"stage": 3}, f"which stage 3 would separate: {ONE_PARAMETER}"),
        (
            same_range,
            {"stage": 3},
            f"which stage 3 would separate: {ONE_PARAMETER}, or use stage 1 or 2 without gather",
        ),
        (with_a_frozen_one, {"stage": 3}, f"which stage 3 would separate: {ONE_PARAMETER}, or use stage 1 or 2"),
        (
            with_a_buffer,
            {"stage": 3},
            "which stage 3 would separate: let modules read the parameter in place of the buffer, or use stage 1 or 2",
        ),
    ],
)
def test_what_would_be_trained_apart_is_refused(one_rank, make, config, words):
    (said,) = one_rank.run(refused, make, config)
    assert said == f"ValueError: [zero.initialize] first and second share memory, {words}"


def refused(rank: int, make: Any, config: dict[str, Any]) -> str:
    return error_of(lambda: engine_of(make(), **config))
