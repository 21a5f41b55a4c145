# SPDX-License-Identifier: Apache-2.0
"""Hooks of torch around states, and torch.compile around steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fused_runs import MAKERS, give_gradients, go_on, parameters_of

from octavo.optim import AdamW8bit, to_bitsandbytes, to_torch


def unwrapped(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    return state_dict["optimizer"]


def wrapped(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    return {"optimizer": state_dict}


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_is_checked_after_the_hooks_of_the_program(name):
    first, second = MAKERS[name](parameters_of()), MAKERS[name](parameters_of())
    go_on(first, range(4))
    for ours, theirs in zip(second.param_groups[0]["params"], first.param_groups[0]["params"], strict=True):
        ours.data.copy_(theirs)
    first.register_state_dict_post_hook(wrapped)
    second.register_load_state_dict_pre_hook(unwrapped)
    saved = first.state_dict()
    assert saved.keys() == {"optimizer"}
    second.load_state_dict(saved)
    for optimizer in (first, second):
        go_on(optimizer, range(4, 7))
    pairs = zip(first.param_groups[0]["params"], second.param_groups[0]["params"], strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert len(second._optimizer_load_state_dict_pre_hooks) == 1
    stranger = torch.optim.Adagrad(parameters_of())
    with pytest.raises(ValueError, match="this is the state of another optimizer"):
        second.load_state_dict({"optimizer": stranger.state_dict()})
    assert len(second._optimizer_load_state_dict_pre_hooks) == 1


def test_translations_do_not_depend_on_hooks():
    optimizer = AdamW8bit(parameters_of())
    go_on(optimizer, range(2))
    saved = optimizer.state_dict()
    optimizer.register_state_dict_post_hook(wrapped)
    for translated in (to_torch(optimizer), to_bitsandbytes(optimizer)):
        assert translated["state"].keys() == saved["state"].keys()
        assert translated["param_groups"][0]["params"] == saved["param_groups"][0]["params"]


@pytest.mark.parametrize("name", ["AdamW", "AdamW8bit", "Lion", "DistributedLion", "OneBitAdamW", "ZeroOneAdam"])
def test_a_step_in_a_compiled_function_is_not_compiled_again(name):
    ends = []
    for compiles in (False, True):
        torch._dynamo.reset()
        optimizer = MAKERS[name](parameters_of())
        parameters = optimizer.param_groups[0]["params"]

        def step() -> None:
            optimizer.step()  # noqa: B023

        step = torch.compile(step, backend="eager") if compiles else step
        for number in range(5):
            give_gradients(parameters, number)
            with torch._dynamo.config.patch(error_on_recompile=number > 1):
                step()
        ends.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
