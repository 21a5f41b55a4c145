# SPDX-License-Identifier: Apache-2.0
"""How the fused optimizers round parameters in bfloat16: to nearest, by random bits, with extra bits."""

from __future__ import annotations

import copy

import pytest
import torch
from fused_runs import give_gradients, go_on, randn
from torch import Tensor, nn

from octavo.optim import (
    AdamW,
    AdamW8bit,
    Lion,
)


def rounded_runs(rounding: str, steps: int, seed: int = 0) -> Tensor:
    """Returns a bfloat16 parameter of 4 that loses 1e-3 in every step: less than half a unit of its last place."""
    parameter = nn.Parameter(torch.full((4096,), 4.0, dtype=torch.bfloat16))
    optimizer = Lion([parameter], lr=1e-3, bf16_rounding=rounding, seed=seed)
    for _ in range(steps):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return parameter.detach().float()


def test_small_steps_are_lost_by_rounding_to_nearest_alone():
    assert rounded_runs("nearest", 200).eq(4).all()
    at_random = rounded_runs("stochastic", 200)
    assert torch.equal(at_random, rounded_runs("stochastic", 200))
    assert not torch.equal(at_random, rounded_runs("stochastic", 200, seed=1))
    assert at_random.mean().item() == pytest.approx(3.8, abs=2e-3)  # 5 standard deviations of the mean are 2e-3
    assert rounded_runs("extra_bits", 200).sub(3.8).abs().max() < 0.03
    assert rounded_runs("extra_bits", 200).unique().numel() == 1


def test_extra_bits_follow_float32_more_closely():
    errors = {}
    for rounding in ("nearest", "stochastic", "extra_bits"):
        ends = []
        for dtype in (torch.float32, torch.bfloat16):
            parameter = nn.Parameter(randn(0, 4096).bfloat16().to(dtype))
            optimizer = AdamW([parameter], lr=1e-4, bf16_rounding=rounding)
            for step in range(200):
                parameter.grad = (randn(step, 4096) + 0.5).bfloat16().to(dtype)
                optimizer.step()
            ends.append(parameter.detach().float())
        errors[rounding] = (ends[0] - ends[1]).norm().item()
    assert errors["extra_bits"] < 0.4 * min(errors["nearest"], errors["stochastic"])


def test_no_random_bits_are_drawn_twice():
    """The random bits depend on the parameter's own step: that of the first parameter of its group may stay the
    same."""
    first, second = (nn.Parameter(torch.full((4096,), 1.0, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = Lion([first, second], lr=2**-9, betas=(0.0, 0.0), bf16_rounding="stochastic")
    moves = []
    for step in range(3):
        first.grad = torch.ones_like(first) if step != 1 else None
        second.grad, before = torch.ones_like(second), second.detach().fill_(1.0).clone()
        optimizer.step()
        moves.append(second.detach() != before)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert 0.4 < (moves[i] == moves[j]).float().mean() < 0.6, (i, j)


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf")])
def test_what_others_set_a_parameter_to_has_no_extra_bits(value):
    """A negative tail under a zero, or any tail under an infinity, would give a NaN."""
    parameter = nn.Parameter(randn(0, (64, 64)).bfloat16())
    optimizer = AdamW(parameters := [parameter], lr=1e-3, bf16_rounding="extra_bits", weight_decay=0.0)
    give_gradients(parameters, 0)
    optimizer.step()
    assert bool((optimizer.state[parameter]["extra_bits"] < 0).any())
    with torch.no_grad():
        parameter.fill_(value)
    give_gradients(parameters, 1)
    optimizer.step()
    if value == 0:
        assert bool(torch.isfinite(parameter).all())
        assert float(parameter.detach().abs().max()) < 3e-3
    else:
        assert bool((parameter == value).all())


def test_a_parameter_that_is_bfloat16_no_longer_has_no_extra_bits():
    parameter = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    optimizer = AdamW8bit([parameter], bf16_rounding="extra_bits")
    go_on(optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    parameter.grad = None
    parameter.data = parameter.data.float()
    go_on(optimizer, range(1, 2))
    assert "extra_bits" not in optimizer.state[parameter]
    wide = AdamW8bit([nn.Parameter(torch.ones(64, 64))], bf16_rounding="extra_bits")
    wide.load_state_dict(saved)
    go_on(wide, range(1, 2))
    assert "extra_bits" in saved["state"][0]


@pytest.mark.parametrize("make", [AdamW, AdamW8bit, Lion])
def test_random_bits_are_drawn_by_the_number_of_an_element_whatever_its_place(make):
    ends = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        parameter = nn.Parameter(randn(0, (8, 8, 8, 9)).bfloat16().to(memory_format=memory_format))
        optimizer = make([parameter], lr=1e-3, bf16_rounding="stochastic")
        go_on(optimizer, range(3))
        ends.append(parameter.detach())
    assert torch.equal(*ends)


def test_torch_converts_a_model_whose_parameters_were_rounded_by_random_bits():
    model = nn.Linear(64, 64).bfloat16()
    optimizer = AdamW(model.parameters(), bf16_rounding="stochastic")
    model(torch.randn(4, 64).bfloat16()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.__future__.set_swap_module_params_on_conversion(True)  # as it always is where parameters are DTensors
    try:
        assert model.to(torch.float32).weight.dtype == torch.float32
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
