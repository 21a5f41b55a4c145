# SPDX-License-Identifier: Apache-2.0
"""A step that fails: one that is refused has moved nothing, and a freeze that found no memory midway is finished before
anything else is done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from ddp_runs import digest
from fused_runs import MAKERS, give_gradients, go_on, parameters_of, randn, tensors_of
from lion_runs import Given, gradients_of
from lion_runs import wrap as wrap_lion
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import OneBitAdamW, OneBitLamb

# ---- steps that are refused


def expand(parameter: nn.Parameter, _: torch.optim.Optimizer) -> None:
    parameter.data = torch.ones(()).expand(parameter.shape)


def change_the_state(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, to: torch.dtype | str) -> None:
    state = optimizer.state[parameter]
    name = "exp_avg_sq" if "exp_avg_sq" in state else "preconditioner"
    state[name] = state[name].to(to)


OF_STATE = r"the (exp_avg_sq|preconditioner) of a parameter as strided float32 \(9,\) on cpu, got torch\.strided"
SPOILING = {
    "expand": (expand, r"parameters with memory for each element, got strides \(0,\) of \(9,\)"),
    "widen": (partial(change_the_state, to=torch.float64), rf"{OF_STATE} torch\.float64 \(9,\) on cpu"),
    "move": (partial(change_the_state, to="meta"), rf"{OF_STATE} torch\.float32 \(9,\) on meta"),
}


@pytest.mark.parametrize("name", ["OneBitAdamW", "OneBitLamb", "ZeroOneAdam"])
@pytest.mark.parametrize("done", [1, 3])
@pytest.mark.parametrize("what", SPOILING)
def test_a_step_that_one_parameter_refuses_moves_no_other(name, done, what):
    """In both phases. The groups have options of their own, so that an operator is called for each."""
    parameters = [nn.Parameter(randn(number, size)) for number, size in enumerate(((7, 5), (4,), (9,)))]
    optimizer = MAKERS[name]([{"params": parameters[:2]}, {"params": parameters[2:], "eps": 1e-6}])
    go_on(optimizer, range(done))
    give_gradients(parameters, done)
    spoil, words = SPOILING[what]
    spoil(parameters[2], optimizer)
    before = copy.deepcopy((parameters[:2], {**optimizer.state[parameters[0]]}, optimizer.param_groups[0]["steps"]))
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"^\[optim\.{name}\] expected {words}.*; no parameter has moved$"):
            optimizer.step()
    after = (parameters[:2], {**optimizer.state[parameters[0]]}, optimizer.param_groups[0]["steps"])
    torch.testing.assert_close(after, before, rtol=0.0, atol=0.0)


def refuse_a_group_of_lion(rank: int) -> None:
    module = Given()
    model, _, optimizer = wrap_lion("lion", module=module)
    optimizer.param_groups[0]["params"] = [module.weight]
    optimizer.add_param_group({"params": [module.bias], "lr": 0.5})
    model(*gradients_of(rank, 0)).backward()
    before = module.weight.detach().clone()
    module.bias.data = torch.zeros(()).expand(40)
    with pytest.raises(
        ValueError, match=r"^\[optim\.DistributedLion\] expected parameters with memory for each element"
    ):
        optimizer.step()
    assert torch.equal(module.weight, before)


def test_a_group_that_a_joined_lion_refuses_moves_no_other(two_ranks):
    two_ranks.run(refuse_a_group_of_lion)


# ---- freezes that find no memory


def fail_once(patch: pytest.MonkeyPatch, at: int) -> None:
    """Refuses memory to the freeze of one variance, in the call of this number."""
    freeze, calls = torch.ops.octavo.freeze_variance_, iter(range(10**6))

    def freeze_or_fail(*arguments: object) -> None:
        if next(calls) == at:
            raise torch.OutOfMemoryError("none")
        freeze(*arguments)

    patch.setattr(torch.ops.octavo, "freeze_variance_", freeze_or_fail)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("name", ["OneBitAdamW", "OneBitLamb"])
def test_a_freeze_that_failed_is_finished_before_the_next_step(name, at, monkeypatch):
    make = MAKERS[name]
    optimizers = [make(parameters_of()), make(parameters_of())]
    for optimizer in optimizers:
        go_on(optimizer, range(1))
    go_on(optimizers[0], range(1, 2))
    fail_once(monkeypatch, at)
    with pytest.raises(torch.OutOfMemoryError):
        go_on(optimizers[1], range(1, 2))
    assert [optimizer.frozen for optimizer in optimizers] == [True, False]
    if at > 0:  # what is left is seen in a state that is saved now, too
        resumed = make([nn.Parameter(p.detach().clone()) for p in optimizers[1].param_groups[0]["params"]])
        resumed.load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
        optimizers.append(resumed)
    for optimizer in optimizers:
        go_on(optimizer, range(2, 4))
    for other in optimizers[1:]:
        assert other.frozen and torch.equal(tensors_of(other)[0], tensors_of(optimizers[0])[0])
        torch.testing.assert_close(list(other.state.values()), list(optimizers[0].state.values()), rtol=0.0, atol=0.0)


def train(rank: int, make: Callable[..., OneBitAdamW], fails_at: int | None, is_called_again: bool) -> list[str]:
    """Freezes after two steps, where rank 1 finds no memory in the call `fails_at`."""
    model = DistributedDataParallel(Given())
    optimizer = make(model.parameters(), lr=1e-2, warmup_steps=2)
    octavo.compress(model, "sign+ef", optimizer=optimizer, timeout_s=10.0)
    digests = []
    for step in range(5):
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        if step == 1 and rank == 1 and fails_at is not None:
            with pytest.MonkeyPatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
                fail_once(patch, fails_at)
                optimizer.step()
            if is_called_again:
                optimizer.step()
                assert optimizer.frozen
        else:
            optimizer.step()
        digests.append(digest(model))
    return digests


@pytest.mark.parametrize("make", [OneBitAdamW, OneBitLamb])
def test_a_rank_whose_freeze_failed_sends_momenta_as_the_others_do(two_ranks, make):
    expected = two_ranks.run(train, make, None, False)
    for fails_at, is_called_again in ((0, False), (1, False), (1, True)):
        assert two_ranks.run(train, make, fails_at, is_called_again) == expected
