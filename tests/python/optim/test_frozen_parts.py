# SPDX-License-Identifier: Apache-2.0
"""Parts of a model that are frozen for a while, under the optimizers that decide what is sent."""

from __future__ import annotations

import copy

import pytest
import torch
from lion_runs import build
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW

FROZEN = range(2, 5)


def two_layers() -> DistributedDataParallel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    return DistributedDataParallel(model, find_unused_parameters=True)


def signs_with_a_frozen_part(rank: int, name: str, event: str) -> tuple[list[float], torch.Tensor]:
    """Freezes the second layer in three steps, in one of which `event` happens. Returns the size of its momentum after
    each step, and its weight in the end."""
    model = two_layers()
    optimizer = build(name, model.parameters())
    handle = octavo.compress(model, "sign-vote", optimizer=optimizer)
    frozen, norms = model.module[1], []
    for step in range(8):
        frozen.requires_grad_(step not in FROZEN)
        if step == 3 and event == "load":
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if step == 3 and event == "a group":
            optimizer.add_param_group({"params": []})
        optimizer.zero_grad()
        model(torch.full((8, 64), step + rank + 1.0)).square().mean().backward()
        optimizer.step()
        norms.append(handle.state_dict()["momentum/1.weight"].norm().item())
    return norms, frozen.weight.detach()


@pytest.mark.parametrize("event", ["load", "a group"])
@pytest.mark.parametrize("name", ["signum", "lion"])
def test_a_part_that_is_frozen_for_a_while_keeps_its_momentum(two_ranks, name, event):
    expected = two_ranks.run(signs_with_a_frozen_part, name, "nothing")
    for (norms, weight), (norms_without, weight_without) in zip(
        two_ranks.run(signs_with_a_frozen_part, name, event), expected, strict=True
    ):
        assert norms == norms_without and min(norms) > 0
        assert torch.equal(weight, weight_without)


def forget_zero_grad(rank: int, was_frozen: bool) -> str | None:
    """Lets the second layer be frozen when the warm-up ends, and then adds its gradient to a momentum."""
    model = two_layers()
    optimizer = OneBitAdamW(model.parameters(), lr=0.01, warmup_steps=3)
    octavo.compress(model, "sign+ef", optimizer=optimizer)
    first, second = model.module
    try:
        for step in range(7):
            second.requires_grad_(not (was_frozen and 1 <= step < 4) or step >= 5)
            first.requires_grad_(step < 5)
            if step < 6:
                optimizer.zero_grad()
            model(torch.full((8, 64), step + rank + 1.0)).square().mean().backward()
            optimizer.step()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("was_frozen", [False, True])
def test_no_gradient_is_added_to_the_momentum_of_a_part_that_was_frozen(two_ranks, was_frozen):
    for said in two_ranks.run(forget_zero_grad, was_frozen):
        assert said and said.startswith("[handle.backward] .grad of 1.")
