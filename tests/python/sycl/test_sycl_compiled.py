# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs on sycl whose values for the backward pass wait on the host."""

import gc

import pytest
import torch
from test_sycl_ddp import group_of
from torch import nn

import octavo
import octavo.sycl


def trained(rank: int, passes: list[str] | None) -> tuple[list[float], int]:
    """Returns the losses, and the bytes that the device holds between a forward pass and its backward pass."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to("sycl")
    config = {"zero_stage": 2, "bucket_mib": 0.5, "compile": "aot_eager" if passes else False}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), config, group=group_of("sycl"))
    if passes:
        engine.set_compile_schedule([(0, passes)])
    losses, held = [], 0
    gc.collect()  # removes the engines of earlier runs
    before = torch.sycl.memory_allocated()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        x = torch.randn(2048, 256, generator=generator).to("sycl")
        loss = torch.tanh(engine(x)).square().mean()
        held = torch.sycl.memory_allocated() - before
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    torch._dynamo.reset()
    return losses, held


def test_values_for_the_backward_pass_wait_on_the_host(two_ranks) -> None:
    eager = two_ranks.run(trained, None)
    compiled = two_ranks.run(trained, ["reduce"])
    offloaded = two_ranks.run(trained, ["reduce", "offload_activations"])
    of_one_value = 2048 * 256 * 4
    for (losses, held), (same, as_much), (same_too, less) in zip(eager, compiled, offloaded, strict=True):
        assert losses == same == same_too
        assert as_much == held
        # the caller has the last layer's output, and the first one's input
        assert less == held - 3 * of_one_value


class KnownGradient(torch.autograd.Function):
    """A loss that computes its gradient in the forward pass, and returns what it has saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(2 * x / x.numel())
        return x.square().mean()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0]


class Broken(nn.Module):
    """A model of two graphs, the second of which returns a value that it has saved as a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        torch._dynamo.graph_break()
        return KnownGradient.apply(x)


def trained_by_known_gradient(rank: int, passes: list[str] | None) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Broken().to("sycl")
    config = {"zero_stage": 2, "compile": "aot_eager" if passes else False}
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), config, group=group_of("sycl"))
    if passes:
        engine.set_compile_schedule([(0, passes)])
    losses, generator = [], torch.Generator().manual_seed(rank)
    for _ in range(3):
        loss = sum(engine(torch.randn(2048, 256, generator=generator).to("sycl")) for _ in range(2))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    torch._dynamo.reset()
    return losses


def test_a_saved_value_may_be_a_gradient(two_ranks) -> None:
    eager = two_ranks.run(trained_by_known_gradient, None)
    offloaded = two_ranks.run(trained_by_known_gradient, ["reduce", "offload_activations"])
    for got, expected in zip(offloaded, eager, strict=True):
        assert got == pytest.approx(expected, rel=1e-5)


def refused(rank: int) -> str:
    model = nn.Linear(4, 4).to("sycl")
    optimizer, config = torch.optim.SGD(model.parameters()), {"zero_stage": 3, "compile": True}
    with pytest.raises(ValueError) as caught:
        octavo.initialize(model, optimizer, config, group=group_of("sycl"))
    # the setting that the error suggests
    octavo.initialize(model, optimizer, config | {"compile": "aot_eager"}, group=group_of("sycl"))
    return str(caught.value)


def test_generated_code_is_refused_before_anything_has_changed(one_rank) -> None:
    (said,) = one_rank.run(refused)
    assert said == (
        '[zero.initialize] Inductor has no code for sycl: give "compile": "aot_eager", '
        "whose graphs run aten's operators"
    )
