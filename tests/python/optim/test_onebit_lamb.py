# SPDX-License-Identifier: Apache-2.0
"""OneBitLamb: LAMB in its warm-up, frozen coefficients with a factor after it. What it shares with OneBitAdamW is
tested there."""

from __future__ import annotations

import itertools

import pytest
import torch
from ddp_runs import OddShapes
from lion_runs import Given, gradients_of, learning_curve
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train_runs import solo_world

import octavo
from octavo.optim import OneBitAdamW, OneBitLamb


def lamb(parameter: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, step: int) -> float:
    """Makes a step of LAMB in float64: lr 0.1, betas 0.9 and 0.99, weight decay 0.02, coefficients of 0.01 to 10.
    Returns the coefficient."""
    mean.lerp_(gradient, 0.1)
    square.lerp_(gradient.square(), 0.01)
    direction = mean / (1 - 0.9**step) / ((square / (1 - 0.99**step)).sqrt() + 1e-8) + 0.02 * parameter
    size, length = parameter.norm().item(), direction.norm().item()
    coefficient = min(max(size / length, 0.01), 10.0) if size > 0 and length > 0 else 1.0
    parameter.sub_(0.1 * coefficient * direction)
    return coefficient


def make(parameters, **options) -> OneBitLamb:
    return OneBitLamb(parameters, **{"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.02, **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_warmup_is_lamb(dtype):
    """An empty tensor and one of zeros, such as a bias, have the coefficient 1 and do not disturb the others."""
    shapes = ((300, 7), (0,), (50,), (), (64, 3))
    parameters = [nn.Parameter(torch.randn(shape, dtype=dtype) * 5) for shape in shapes]
    parameters[2].data.zero_()
    optimizer = make(parameters, warmup_steps=100)
    expected = [parameter.detach().double().clone() for parameter in parameters]
    means, squares = ([torch.zeros_like(p) for p in expected] for _ in range(2))
    running = [0.0] * len(shapes)
    for step in range(1, 11):
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape, dtype=dtype, generator=torch.Generator().manual_seed(step))
            coefficient = lamb(expected[i], means[i], squares[i], parameter.grad.double(), step)
            running[i] = 0.9 * running[i] + 0.1 * coefficient
        optimizer.step()
    for i, parameter in enumerate(parameters):
        torch.testing.assert_close(parameter.double(), expected[i], rtol=1e-5, atol=1e-5)
        assert optimizer.state[parameter]["coefficient"] == pytest.approx(running[i], rel=1e-5)
    assert running[1] == pytest.approx(1 - 0.9**10)


def test_a_step_after_the_freeze_has_the_frozen_coefficient_and_the_factor():
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(40, 30))
    optimizer = make([parameter], warmup_steps=4)
    factors = []
    for step in range(60):
        size = 1.0 if step < 20 else 100.0
        parameter.grad = size * torch.randn(40, 30, generator=torch.Generator().manual_seed(step))
        before = parameter.detach().clone()
        optimizer.step()
        state = optimizer.state[parameter]
        if step == 3:
            coefficient = state["coefficient"]
            assert 0.01 < coefficient < 10
        if step > 3:
            step_size = 0.1 * coefficient * state["factor"]
            assert state["coefficient"] == coefficient
            expected = before * (1 - step_size * 0.02) - step_size * state["exp_avg"]
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)
            factors.append(state["factor"])
    changes = [b / a for a, b in itertools.pairwise(factors)]
    assert all(0.9 - 1e-9 <= change <= 1.1 + 1e-9 for change in changes)
    assert min(changes) == pytest.approx(0.9) and factors[-1] == 0.5, "gradients grew a hundredfold"


def test_the_operator_is_traceable_and_refuses_what_does_not_fit():
    def lists(*sizes: int) -> list[Tensor]:
        return [torch.rand(size) for size in sizes]

    def coefficients(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.float64)

    options = (0.1, 0.9, 0.99, 1e-8, 0.01, 0.01, 10.0)
    values = [lists(5, 0, 9) for _ in range(4)]
    torch.library.opcheck(torch.ops.octavo.lamb_.default, (*values, [1, 1, 2], coefficients(3), *options))
    parameters = lists(5, 9)
    before = [parameter.clone() for parameter in parameters]
    for gradients, steps in ((lists(5), [1, 1]), (lists(5, 8), [1, 1]), (lists(5, 9), [1])):
        with pytest.raises(ValueError, match=r"^\[optim\.lamb\] expected"):
            torch.ops.octavo.lamb_(parameters, gradients, lists(5, 9), lists(5, 9), steps, coefficients(2), *options)
    with pytest.raises(ValueError, match=r"^\[optim\.lamb\] expected coefficients"):
        torch.ops.octavo.lamb_(*[lists(5, 9) for _ in range(4)], [1, 1], coefficients(3), *options)
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True)), "the first changed all the same"
    torch.ops.octavo.lamb_([], [], [], [], [], coefficients(0), *options)


def learn(rank: int, stop: int | None = None) -> list:
    """Returns losses and digests of 30 steps of an odd model; at `stop` everything is saved, built anew and loaded."""

    def build():
        model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
        optimizer = OneBitLamb(model.parameters(), lr=3e-2, warmup_steps=6)
        return model, octavo.compress(model, "sign+ef", optimizer=optimizer), optimizer

    curve, handle, optimizer = learning_curve(rank, build, stop)
    assert optimizer.frozen and str(handle.plan) == "sign:262144+ef"
    return curve


def require_learnt(curves: list) -> None:
    assert all([step[1] for step in curve] == [step[1] for step in curves[0]] for curve in curves), "replicas differ"
    for curve in curves:
        assert curve[-1][0] < 0.5 * curve[0][0]


def test_it_learns_with_replicas_of_the_same_bits(two_ranks, three_ranks):
    with solo_world():
        require_learnt([learn(0)])
    require_learnt(two_ranks.run(learn))
    require_learnt(three_ranks.run(learn))


@pytest.mark.parametrize("stop", [3, 6, 20])
def test_resuming_gives_the_same_bits_before_and_after_the_freeze(two_ranks, stop):
    assert two_ranks.run(learn, stop) == two_ranks.run(learn)


def poison(rank: int, at: int) -> None:
    model = DistributedDataParallel(Given())
    optimizer = OneBitLamb(model.parameters(), warmup_steps=3)
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    for step in range(8):
        optimizer.zero_grad()
        gradients = gradients_of(rank, step)
        if step == at and rank == 1:
            gradients[0][5, 7] = float("nan")
        before = handle.state_dict()
        model(*gradients).backward()
        finite = all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())
        assert finite == (step != at)
        if finite:
            optimizer.step()
            continue
        after = handle.state_dict()
        assert {**before, "step": 0}.keys() == {**after, "step": 0}.keys()
        assert all(torch.equal(after[key], value) for key, value in before.items() if isinstance(value, Tensor))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("at", [1, 5])
def test_a_nan_on_one_rank_leaves_no_trace(two_ranks, at):
    two_ranks.run(poison, at)


def test_arguments_and_states_that_make_no_sense_are_refused():
    parameters = [nn.Parameter(torch.zeros(2))]
    for options in (
        {"coefficient_bounds": (1.0, 0.5)},
        {"factor_bounds": (0.0, 4.0)},
        {"factor_change": 1.0},
        {"coefficient_beta": 1.0},
        {"warmup_steps": 0},
    ):
        with pytest.raises(ValueError, match=r"^\[optim\.OneBitLamb\] expected"):
            make(parameters, **{"warmup_steps": 1, **options})
    with pytest.raises(ValueError, match="this is the state of another optimizer, not of OneBitLamb"):
        make(parameters, warmup_steps=1).load_state_dict(OneBitAdamW(parameters, warmup_steps=1).state_dict())


def refuse_votes(rank: int) -> None:
    model = DistributedDataParallel(Given())
    optimizer = OneBitLamb(model.parameters(), warmup_steps=1)
    with pytest.raises(ValueError, match=r"\[optim\.OneBitLamb\] expected a plan that keeps magnitudes"):
        octavo.compress(model, "sign-vote", optimizer=optimizer)
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    with pytest.raises(ValueError, match="follows the phases of its OneBitLamb"):
        handle.set_plan("bf16")


def test_a_plan_without_magnitudes_is_refused(two_ranks):
    two_ranks.run(refuse_votes)
