# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers do with gradients: those that are not finite, clipping, steps in backward."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from fused_runs import give_gradients, go_on, parameters_of, randn, run, same, tensors_of
from torch import nn

from octavo import optim
from octavo.optim import (
    AdamW,
    AdamW4bit,
    AdamW8bit,
    DistributedLion,
    Lion8bit,
)
from octavo.optim.clipping import clip_gradients
from octavo.optim.nonfinite import NONFINITE
from octavo.optim.rounding_numbers import RoundingNumbers


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("make", [AdamW, AdamW8bit, Lion8bit])
def test_skip_element_leaves_the_element_alone(make, bad):
    parameters, optimizer = run(make, range(1))
    assert not optimizer.saw_nonfinite()
    twin = copy.deepcopy(optimizer)
    twins = [p for g in twin.param_groups for p in g["params"]]
    for one in (parameters, twins):
        give_gradients(one, 1)
    parameters[1].grad[300] = bad
    before = parameters[1].detach().clone()
    optimizer.step()
    twin.step()
    assert parameters[1][300] == before[300]
    moved = parameters[1] != before
    assert moved.sum() == moved.numel() - 1
    assert torch.equal(parameters[0], twins[0])
    others = torch.arange(4097) != 300
    assert torch.equal(parameters[1][others], twins[1][others])
    assert optimizer.saw_nonfinite() and not optimizer.saw_nonfinite() and not twin.saw_nonfinite()


@pytest.mark.parametrize("policy", NONFINITE)
@pytest.mark.parametrize("make", [AdamW, AdamW8bit, AdamW4bit])
def test_a_gradient_without_a_finite_square_leaves_its_element_alone(make, policy):
    parameters, optimizer = run(make, range(1), nonfinite=policy)
    for step in (1, 2):
        give_gradients(parameters, step)
        parameters[1].grad[300] = 1e30 if step == 1 else 1e-3
        before = parameters[1].detach().clone()
        optimizer.step()
        assert optimizer.saw_nonfinite() == (step == 1)
        moved = (parameters[1] != before).float()
        assert moved[300] == (step == 2) and moved.mean() > 0.99
        assert (parameters[1] - before).abs().max() < 0.1


@pytest.mark.parametrize("policy", ["skip_step", "raise"])
@pytest.mark.parametrize("place", [0, 3])
def test_other_policies_leave_all_groups_as_they_are(policy, place):
    """This includes the groups before that of the bad gradient. A tensor without elements has no bad gradient."""
    parameters = [*parameters_of(), nn.Parameter(torch.zeros(0))]
    optimizer = AdamW8bit([{"params": parameters[:2]}, {"params": parameters[2:]}], nonfinite=policy)
    go_on(optimizer, range(2))
    before = [t.clone() for t in tensors_of(optimizer)]
    give_gradients(parameters, 2)
    parameters[place].grad.view(-1)[0] = float("nan")
    if policy == "raise":
        with pytest.raises(FloatingPointError, match="not finite"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.saw_nonfinite()
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))
    go_on(optimizer, range(3, 4))
    assert int(optimizer.state[parameters[0]]["step"]) == 3


def test_a_step_that_is_refused_counts_for_nothing():
    parameters, optimizer = run(AdamW, range(2))
    before = [t.clone() for t in tensors_of(optimizer)]
    give_gradients(parameters, 2)
    optimizer.state[parameters[3]]["exp_avg"] = torch.zeros(7)
    with pytest.raises(ValueError, match="mean 3"):
        optimizer.step()
    optimizer.state[parameters[3]]["exp_avg"] = before[-2]
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_torchs(max_norm):
    runs = []
    for own in (True, False):
        parameters, optimizer = run(AdamW, range(0), lr=0.1, eps=1.0)
        for step in range(3):
            give_gradients(parameters, step)
            if own:
                kept = [p.grad.clone() for p in parameters]
                norm = optimizer.clip_grad_norm_(max_norm)
                assert all(torch.equal(p.grad, g) for p, g in zip(parameters, kept, strict=True))
            else:
                norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            optimizer.step()
        runs.append((norm, parameters))
    assert torch.equal(runs[0][0], runs[1][0])
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_finite_gradients_whose_norm_overflows_in_float32_are_clipped():
    weight, expected = (torch.nn.Parameter(torch.zeros(1 << 16)) for _ in range(2))
    own, twin = AdamW([weight], lr=0.1, eps=1.0), AdamW([expected], lr=0.1, eps=1.0)
    weight.grad = torch.full_like(weight, 1e18)  # the squares add up to 6.6e40
    assert own.clip_grad_norm_(torch.tensor([256.0])).item() == pytest.approx(2.56e20)
    own.step()
    expected.grad = torch.ones_like(expected)
    twin.step()
    torch.testing.assert_close(weight, expected)


def test_complex_gradients_are_clipped():
    weight = nn.Parameter(torch.zeros(10, dtype=torch.complex64))
    weight.grad = torch.full((10,), complex(0, 1e30))  # the squares overflow in float32
    assert clip_gradients([weight], 1.0).item() == pytest.approx(1e30 * 10**0.5)
    torch.testing.assert_close(weight.grad, torch.full((10,), complex(0, 10**-0.5)))
    weight.grad[3] = complex(0, torch.inf)
    before = weight.grad.clone()
    assert clip_gradients([weight], 1.0).isinf()
    assert torch.equal(weight.grad, before)


def test_gradients_are_clipped_as_torch_does_unless_their_norm_is_not_finite():
    parameters, twins = parameters_of(), parameters_of()
    give_gradients(parameters, 1)
    give_gradients(twins, 1)
    parameters[-1].grad = twins[-1].grad = None
    assert torch.equal(clip_gradients(parameters, 0.5), torch.nn.utils.clip_grad_norm_(twins, 0.5))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(parameters[:-1], twins[:-1], strict=True))
    parameters[0].grad[0, 0] = torch.inf
    before = [parameter.grad.clone() for parameter in parameters[:-1]]
    assert clip_gradients(parameters, 0.5).isinf()
    assert all(torch.equal(a.grad, b) for a, b in zip(parameters[:-1], before, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_parameters_over_one_memory_are_stepped_one_after_another(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ends = []
        for make in (torch.optim.AdamW, AdamW, AdamW):
            values = randn(0, (1 << 20,))
            pair = [nn.Parameter(values), nn.Parameter(values[1 << 19 :])]
            optimizer = make(pair, lr=0.1, weight_decay=0.0)
            for step in range(2):
                for number, parameter in enumerate(pair):
                    parameter.grad = randn(10 * step + number, parameter.shape)
                optimizer.step()
            ends.append(values)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(ends[1], ends[2])


@pytest.mark.parametrize("max_norm", [-1.0, float("nan")])
def test_a_norm_that_is_none_is_refused(max_norm):
    _, optimizer = run(AdamW, range(1))
    with pytest.raises(ValueError, match="expected max_norm as a number of at least 0"):
        optimizer.clip_grad_norm_(max_norm)


def test_zero_grad_forgets_a_clip_that_no_step_took():
    """A step that a GradScaler skips leaves such a clip."""
    parameters, optimizer = run(AdamW, range(1))
    twin = copy.deepcopy(optimizer)
    give_gradients(parameters, 1)
    parameters[0].grad[0, 0] = float("nan")
    optimizer.clip_grad_norm_(1.0)
    optimizer.zero_grad()
    for one in (optimizer, twin):
        go_on(one, range(1, 2))
    assert same(optimizer, twin)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_steps_in_backward_are_steps(rounding):
    """This also holds where some parameters came late, so that their step numbers are not those of the first."""
    ends = []
    for in_backward in (False, True):
        parameters = parameters_of(torch.bfloat16)
        optimizer = AdamW8bit(parameters, lr=0.1, bf16_rounding=rounding)
        handles = optimizer.step_in_backward() if in_backward else []
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        for step in range(4):
            used = parameters if step != 1 else parameters[1:]
            sum((p.float() * randn(10 * step + i, p.shape)).sum() for i, p in enumerate(used)).backward()
            assert all((p.grad is None) == in_backward for p in used)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if step == 2:  # a load makes new groups, and schedules write into those
                optimizer.load_state_dict(optimizer.state_dict())
        for handle in handles:
            handle.remove()
        sum(p.float().sum() for p in parameters).backward()
        assert all(p.grad is not None for p in parameters)
        ends.append(optimizer)
    assert same(*ends)


def test_parameters_do_not_keep_the_optimizer_that_steps_in_backward():
    parameter = nn.Parameter(randn(0, (4096,)))
    optimizer = AdamW8bit([parameter], lr=0.1)
    optimizer.step_in_backward()
    parameter.sum().backward()
    alive = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="is gone: keep it as long as the model trains"):
        parameter.sum().backward()


def test_random_bits_in_backward_do_not_count_all_parameters_for_each():
    class Counted(RoundingNumbers):
        counts = 0

        def _find_places(self, groups):
            self.counts += 1
            return super()._find_places(groups)

    parameters = [nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)) for _ in range(50)]
    optimizer = AdamW(parameters[:40], bf16_rounding="stochastic")
    optimizer._rounding_numbers = counted = Counted()
    optimizer.step_in_backward()
    for _ in range(2):
        sum(parameter.sum() for parameter in parameters[:40]).backward()
    assert counted.counts == 1
    optimizer.add_param_group({"params": parameters[40:]})
    for parameter in parameters[40:]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert counted.counts == 2
    steps = [int(optimizer.state[p]["step"]) for p in parameters]
    numbers = counted.numbers(optimizer.param_groups, parameters, steps)
    assert numbers[38:42] == [2 * 2**32 + 38, 2 * 2**32 + 39, 2**32 + 40, 2**32 + 41]


@pytest.mark.parametrize("make", [AdamW, AdamW8bit, AdamW4bit, Lion8bit, DistributedLion, optim.OneBitAdamW])
def test_autograd_refuses_a_backward_pass_that_needs_what_a_step_has_moved(make):
    """torch's optimizers have the same effect. With the moved parameter, autograd would compute another gradient."""
    options = dict(warmup_steps=5) if make is optim.OneBitAdamW else {}
    weight, other = nn.Parameter(torch.ones(64, 64)), nn.Parameter(torch.full((64, 64), 2.0))
    optimizer = make([weight, other], lr=0.1, **options)
    loss = (weight * other).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    assert weight._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_gradient_that_another_hook_has_used_up_makes_no_step():
    parameter = nn.Parameter(torch.ones(8))
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    optimizer = AdamW([parameter])
    optimizer.step_in_backward()
    parameter.sum().backward()
    assert torch.equal(parameter, torch.ones(8)) and not optimizer.state


def test_steps_in_backward_are_asked_for_once_and_not_with_what_needs_all_gradients():
    parameters = parameters_of()
    optimizer = AdamW(parameters)
    handles = optimizer.step_in_backward()
    with pytest.raises(RuntimeError, match="in backward already"):
        optimizer.step_in_backward()
    with pytest.raises(RuntimeError, match="the norm of all gradients is known after backward"):
        optimizer.clip_grad_norm_(1.0)
    for handle in handles:
        handle.remove()
    optimizer.clip_grad_norm_(1.0)
    optimizer.param_groups[0]["nonfinite"] = "skip_step"
    with pytest.raises(ValueError, match="nonfinite as 'skip_element' in backward"):
        optimizer.step_in_backward()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in parameters)
