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
