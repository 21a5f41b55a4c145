# SPDX-License-Identifier: Apache-2.0
"""ZeRO's engine with parameters of few bits: those of a float16 model, and those that `gather` sends in fp8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zero_runs import SMALL, TiedAndFrozen, step_once

import octavo


def in_float16(rank: int, stage: int | None, compile: bool | str, accumulation: int) -> list[float]:
    """Returns the losses of a float16 model; without a stage those of DDP."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 7)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if stage is None:
        step_model = DistributedDataParallel(model)
    else:
        config = {"zero_stage": stage, "compile": compile, "accumulation_steps": accumulation}
        step_model = octavo.initialize(model, optimizer, config | SMALL)
    losses = []
    for batch in range(6 * accumulation):
        x = torch.randn(5, 33, generator=torch.Generator().manual_seed(7 * batch + rank)).half()
        loss = step_model(x).float().square().mean()
        losses.append(loss.item())
        if stage is not None:
            step_model.backward(loss)
            step_model.step()
            continue
        (loss / accumulation).backward()
        if (batch + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    return losses


@pytest.mark.parametrize(
    ("stage", "compile", "accumulation"),
    [(1, False, 2), (2, False, 2), (3, False, 1), (1, "aot_eager", 1), (3, "aot_eager", 2)],
)
def test_a_float16_model_trains_as_by_ddp(two_ranks, stage, compile, accumulation):
    expected = two_ranks.run(in_float16, None, False, accumulation)
    got = two_ranks.run(in_float16, stage, compile, accumulation)
    assert got == [pytest.approx(of_ddp, rel=2e-3) for of_ddp in expected]


def sent_in(rank: int, gather: str | None, stage: int) -> tuple[list[float], int, float]:
    """Returns the losses, the bytes that were sent, and how far parameters as modules see them are from those that
    their owners have, relative to their norm."""
    model = TiedAndFrozen()
    config: dict[str, Any] = {"zero_stage": stage, "gather": gather} | SMALL
    engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.02), config)
    losses = [step_once(engine, rank, batch) for batch in range(6)]
    sent = engine.sent_bytes()
    wholes = {name: whole.clone() for name, whole in engine.whole_parameters()}
    with engine.gathered():
        named = dict(model.named_parameters())
        differences = torch.cat([(named[name] - whole).flatten() for name, whole in wholes.items()])
    norm = torch.cat([whole.flatten() for whole in wholes.values()]).norm()
    return losses, sent, (differences.norm() / norm).item()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_are_sent_in_fp8_are_near_to_those_of_their_owners(two_ranks, stage):
    plain, narrow = (two_ranks.run(sent_in, gather, stage) for gather in (None, "fp8"))
    for (losses, sent, off), (of_fp8, fewer, rounded) in zip(plain, narrow, strict=True):
        assert of_fp8 != losses and of_fp8 == pytest.approx(losses, rel=0.05)
        assert of_fp8[-1] < of_fp8[0]
        assert off == 0 and 0.005 < rounded < 0.0625  # three bits of a fraction
        assert fewer < 0.8 * sent
