# SPDX-License-Identifier: Apache-2.0
"""What OneBitAdamW refuses, and what it does where a momentum could be taken for a gradient: clipping and loss
scales."""

import copy
import math

import pytest
import torch
from ddp_runs import digest
from onebit_runs import loss_of, step_once, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.optim import AdamW, DistributedLion, OneBitAdamW, OneBitLamb, Signum, ZeroOneAdam


def test_arguments_that_make_no_sense_are_refused():
    parameters = [nn.Parameter(torch.zeros(2))]
    for arguments in ({"lr": -1.0}, {"warmup_steps": 0}, {"betas": (1.0, 0.9)}, {"frozen_beta": 1.0}):
        with pytest.raises(ValueError, match="OneBitAdamW"):
            OneBitAdamW(parameters, **{"warmup_steps": 1, **arguments})
    for name, value in (("warmup_steps", "10"), ("frozen_beta", None), ("factor_bounds", (1, 2, 3))):
        with pytest.raises(ValueError, match=rf"^\[optim\.OneBitLamb\] expected .*{name}"):
            OneBitLamb(parameters, **{"warmup_steps": 1, name: value})
    with pytest.raises(ValueError, match="OneBitAdamW"):
        OneBitAdamW(parameters, warmup_steps=1).load_state_dict(torch.optim.AdamW(parameters).state_dict())


def step_alone(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.Optimizer:
    for step in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.full_like(parameter, step + 1.0)
        optimizer.step()
    return optimizer


MAKERS = {
    "OneBitAdamW": lambda p: OneBitAdamW(p, warmup_steps=2),
    "OneBitLamb": lambda p: OneBitLamb(p, warmup_steps=2),
    "ZeroOneAdam": lambda p: ZeroOneAdam(p, var_freeze_step=2, local_step_scaler=2),
    "AdamW": AdamW,
    "DistributedLion": DistributedLion,
}


def zeros(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def flat(values: object) -> list[object]:
    """Returns everything in a state as a flat list, with tensors as numbers."""
    if isinstance(values, dict):
        return [part for key, value in values.items() for part in (key, *flat(value))]
    if isinstance(values, list | tuple):
        return [part for value in values for part in flat(value)]
    return [values.tolist() if isinstance(values, torch.Tensor) else values]


def broken(name: str, what: str) -> dict:
    """Returns a state that does not fit parameters of 8 and 4 elements."""
    sizes = {"a broadcast": (8, 1), "another shape": (8, 3)}.get(what, (8, 4))
    state = copy.deepcopy(step_alone(MAKERS[name](zeros(*sizes)), 3).state_dict())
    key = "preconditioner" if name == "ZeroOneAdam" else "exp_avg"
    if what == "a missing tensor":
        del state["state"][1][key]
    if what == "a number":
        state["state"][1][key] = 0.0
    if what == "a stranger":
        state["state"][1]["max_exp_avg_sq"] = torch.zeros(4)
    return state


@pytest.mark.parametrize("name", ["OneBitAdamW", "OneBitLamb", "ZeroOneAdam"])
@pytest.mark.parametrize("what", ["a broadcast", "another shape", "a missing tensor", "a number", "a stranger"])
def test_a_state_that_does_not_fit_is_refused_whole(name, what):
    optimizer = step_alone(MAKERS[name](zeros(8, 4)), 1)
    before = flat(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(ValueError, match=rf"^\[optim\.{name}\] .*nothing has changed$"):
        optimizer.load_state_dict(broken(name, what))
    assert flat(optimizer.state_dict()) == before


def test_the_state_of_lamb_is_not_that_of_adamw():
    optimizer = MAKERS["OneBitAdamW"](zeros(8))
    with pytest.raises(ValueError, match=r"has no coefficient, factor; nothing has changed$"):
        optimizer.load_state_dict(step_alone(MAKERS["OneBitLamb"](zeros(8)), 1).state_dict())


REFUSED = [
    ({"params": [nn.Parameter(torch.zeros(2, dtype=torch.complex64))]}, "complex parameters are not supported"),
    ({"betas": (0.5, 2.0)}, r"expected two betas from 0 to below 1, got \(0.5, 2.0\)"),
    ({"betas": (0.5, 0.5, 0.5)}, r"expected two betas from 0 to below 1, got \(0.5, 0.5, 0.5\)"),
    ({"lr": -1.0}, "expected a finite lr of at least 0, got -1.0"),
    ({"weight_decay": -1.0}, "expected a finite weight_decay of at least 0, got -1.0"),
]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("group", "words"), REFUSED)
def test_a_group_that_is_refused_is_not_there(name, group, words):
    optimizer = MAKERS[name](zeros(8))
    with pytest.raises((TypeError, ValueError), match=rf"^\[optim\.{name}\] {words}"):
        optimizer.add_param_group({"params": zeros(3), **group})
    assert len(optimizer.param_groups) == 1
    step_alone(optimizer, 3)


def add_a_stranger(rank: int) -> None:
    for name in ("OneBitAdamW", "ZeroOneAdam", "DistributedLion"):
        model = DistributedDataParallel(nn.Linear(64, 64))
        optimizer = MAKERS[name](model.parameters())
        octavo.compress(model, "sign-vote" if name == "DistributedLion" else "sign+ef", optimizer=optimizer)
        with pytest.raises(ValueError, match=rf"\[optim\.{name}\] 1 of the optimizer's parameters are not of"):
            optimizer.add_param_group({"params": zeros(3)})
        assert len(optimizer.param_groups) == 1
        step_once(model, optimizer, rank, 0)


def test_a_group_that_the_handle_does_not_know_is_refused(two_ranks):
    two_ranks.run(add_a_stranger)


def clip_under_another_default_device(rank: int) -> None:
    model, _, optimizer = wrap(warmup_steps=1)
    for step in range(2):
        step_once(model, optimizer, rank, step)
    optimizer.zero_grad()
    loss_of(model, rank, 2).backward()
    with torch.device("meta"):
        assert float(optimizer.clip_grad_norm_(1e-3)) > 0
        optimizer.step()


def test_a_clip_after_the_freeze_does_not_depend_on_the_default_device(two_ranks):
    two_ranks.run(clip_under_another_default_device)


def unfreeze_after_compress(rank: int, name: str) -> None:
    """The gradient of a parameter that was frozen before DDP is never averaged."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    module[0].weight.requires_grad_(False)
    model = DistributedDataParallel(module)
    optimizer = {**MAKERS, "Signum": Signum}[name](model.parameters())
    plan = "sign-vote" if name in ("DistributedLion", "Signum") else "sign+ef"
    octavo.compress(model, plan, optimizer=optimizer)
    for step in range(4):
        step_once(model, optimizer, rank, step)
    module[0].weight.requires_grad_(True)
    optimizer.step()  # without a gradient it does not move, and nothing is wrong
    before = digest(model), flat(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(RuntimeError, match=rf"^\[optim\.{name}\] 0\.weight has a gradient that is not sent between"):
        step_once(model, optimizer, rank, 4)
    assert digest(model) == before[0]
    if name != "ZeroOneAdam":  # whose state_dict() counts the step that the handle has made
        assert flat(optimizer.state_dict()) == before[1]
    module[0].weight.requires_grad_(False)
    module[0].weight.grad = None
    step_once(model, optimizer, rank, 5)


@pytest.mark.parametrize("name", ["OneBitAdamW", "OneBitLamb", "ZeroOneAdam", "DistributedLion", "Signum"])
def test_a_gradient_that_the_handle_does_not_send_is_refused(two_ranks, name):
    two_ranks.run(unfreeze_after_compress, name)


def test_complex_parameters_are_refused():
    with pytest.raises(TypeError, match="complex"):
        OneBitAdamW([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], warmup_steps=1)


def test_groups_that_would_be_sent_differently_are_refused():
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "frozen_beta": beta} for beta in (0.5, 0.9)]
    with pytest.raises(ValueError, match=r"the same frozen_beta in all parameter groups, got 0\.5 and 0\.9"):
        OneBitAdamW(groups, warmup_steps=1)


def refuse_joins(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = OneBitAdamW(model.parameters(), warmup_steps=1)
    with pytest.raises(ValueError, match="magnitude"):
        octavo.compress(model, "sign-vote", optimizer=optimizer)
    with pytest.raises(ValueError, match="magnitude"):
        OneBitAdamW(model.parameters(), warmup_steps=1, warmup_plan="sign-vote")
    stranger = OneBitAdamW([*model.parameters(), nn.Parameter(torch.zeros(2))], warmup_steps=1)
    with pytest.raises(
        ValueError, match=r"1 of the optimizer's parameters are not of the model that octavo.compress is given"
    ):
        octavo.compress(model, "sign+ef", optimizer=stranger)
    with pytest.raises(TypeError, match="got str"):
        octavo.compress(model, "sign+ef", optimizer="adamw")
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    with pytest.raises(ValueError, match="follows the phases"):
        handle.set_plan("bf16")
    assert str(handle.plan) == "int4+ef"
    with pytest.raises(ValueError, match=r"joined to another octavo\.compress already"):
        octavo.compress(DistributedDataParallel(nn.Linear(4, 4)), "sign+ef", optimizer=optimizer)


def test_a_join_that_makes_no_sense_is_refused(two_ranks):
    two_ranks.run(refuse_joins)


def step_without_join(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = OneBitAdamW(model.parameters(), warmup_steps=1)
    octavo.compress(model, "sign+ef")
    loss_of(model, rank, 0).backward()
    before = digest(model)
    with pytest.raises(RuntimeError, match=r"octavo.compress\(ddp, plan, optimizer=optimizer\)"):
        optimizer.step()
    assert digest(model) == before


def test_an_optimizer_that_was_not_joined_makes_no_step(two_ranks):
    two_ranks.run(step_without_join)


def synchronise_twice(rank: int) -> None:
    model, _, optimizer = wrap()
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)  # the two ways to discard a momentum
        with model.no_sync():
            loss_of(model, rank, 2 * step).backward()
        loss_of(model, rank, 2 * step + 1).backward()
        optimizer.step()
    assert optimizer.frozen
    optimizer.zero_grad()
    loss_of(model, rank, 0).backward()
    before = digest(model)
    with pytest.raises(RuntimeError, match=r"\.grad of weight holds the averaged momentum .* no_sync"):
        loss_of(model, rank, 1).backward()
    assert digest(model) == before


def test_a_second_synchronised_backward_pass_in_a_step_is_refused(two_ranks):
    two_ranks.run(synchronise_twice)


def forward_and_backward_apart(rank: int) -> None:
    """The forward pass decides what DDP synchronises, wherever the backward pass is."""
    model, _, optimizer = wrap()
    for step in range(3):
        step_once(model, optimizer, rank, step)
    assert optimizer.frozen
    optimizer.zero_grad()
    with model.no_sync():
        loss = loss_of(model, rank, 0)
    loss.backward()
    loss = loss_of(model, rank, 1)  # adds to a gradient, so this is accumulation
    with model.no_sync():
        loss.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"\.grad of weight holds the averaged momentum"):
        loss_of(model, rank, 2).backward()


def test_the_forward_pass_decides_whether_a_backward_pass_is_synchronised(two_ranks):
    two_ranks.run(forward_and_backward_apart)


def scale_losses(rank: int, scale: bool) -> list[torch.Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scale)
    model, _, optimizer = wrap(scaler=scaler)
    weights = []
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm_(0.05)
        scaler.step(optimizer)
        scaler.update()
        weights.append(model.module.weight.detach().clone())
    return weights


def test_a_loss_scale_that_grows_changes_nothing(two_ranks):
    (scaled, _), (plain, _) = two_ranks.run(scale_losses, True), two_ranks.run(scale_losses, False)
    for a, b in zip(scaled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def scale_losses_in_secret(rank: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    model, _, optimizer = wrap(warmup_steps=1)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        if step == 1:
            with pytest.raises(RuntimeError, match="scaler=scaler"):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
            scaler.update()


def test_a_scaler_that_octavo_does_not_know_is_refused(two_ranks):
    two_ranks.run(scale_losses_in_secret)


def clip_by_torch(rank: int) -> None:
    model, _, optimizer = wrap(warmup_steps=2)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        before = digest(model)
        if optimizer.frozen:
            with pytest.raises(RuntimeError, match=r"optimizer.clip_grad_norm_\(max_norm\)"):
                optimizer.step()
            assert digest(model) == before
        else:
            optimizer.step()
    assert optimizer.frozen


def test_torchs_clip_after_the_freeze_is_refused(two_ranks):
    two_ranks.run(clip_by_torch)


def skip_a_clipped_step(rank: int) -> None:
    model, _, optimizer = wrap(warmup_steps=1)
    step_once(model, optimizer, rank, 0)
    optimizer.zero_grad()
    loss_of(model, rank, 1).backward()
    optimizer.clip_grad_norm_(1e-3)  # no step follows
    optimizer.zero_grad()
    loss_of(model, rank, 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(RuntimeError, match="clip_grad_norm_"):
        optimizer.step()


def test_a_clip_speaks_for_its_own_step_alone(two_ranks):
    two_ranks.run(skip_a_clipped_step)


def norms_in_both_phases(rank: int) -> list[tuple[bool, float, float]]:
    """Returns for each step whether it is frozen, the norm that the clip reports, and that of the averaged gradient."""
    model, _, optimizer = wrap(warmup_steps=10, plan="int4+ef", warmup_plan="bf16")
    twin = copy.deepcopy(model.module)
    norms = []
    for step in range(30):
        twin.load_state_dict(model.module.state_dict())
        for peer in range(2):
            (loss_of(twin, peer, step) / 2).backward()
        true_norm = twin.weight.grad.norm().item()
        twin.weight.grad = None
        frozen = optimizer.frozen
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        norms.append((frozen, optimizer.clip_grad_norm_(1e9).item(), true_norm))
        optimizer.step()
    return norms


def test_the_norm_that_is_clipped_is_the_gradients_in_both_phases(two_ranks):
    norms = two_ranks.run(norms_in_both_phases)[0]
    assert any(frozen for frozen, _, _ in norms)
    for frozen, ours, true in norms:
        assert ours == pytest.approx(true, rel=0.15 if frozen else 0.05)


def clip_a_burst(rank: int, max_norm: float) -> torch.Tensor:
    """Returns how far the momentum moves in a step whose gradient is a hundred times as large as the others."""
    model, _, optimizer = wrap(warmup_steps=4, plan="int4+ef")
    weight = model.module.weight
    for step in range(8):
        optimizer.zero_grad()
        (loss_of(model, rank, step) * (100.0 if step == 7 else 1.0)).backward()
        before = optimizer.state[weight]["exp_avg"].clone() if step == 7 else None
        norm = optimizer.clip_grad_norm_(max_norm).item()
        if step == 7:
            factor = min(1.0, max_norm / (norm + 1e-6))
            unclipped = (weight.grad - 0.5 * before) / factor + 0.5 * before
            return torch.stack([weight.grad, unclipped, before])
        optimizer.step()


def test_a_clip_after_the_freeze_holds_back_what_the_gradient_brought(two_ranks):
    for (clipped, unclipped, before), (free, _, _) in zip(
        two_ranks.run(clip_a_burst, 5.0), two_ranks.run(clip_a_burst, 1e9), strict=True
    ):
        torch.testing.assert_close(unclipped, free, rtol=1e-3, atol=1e-3 * free.abs().max().item())
        assert (clipped - 0.5 * before).norm() < 0.2 * (free - 0.5 * before).norm()


def train_with_clips(rank: int, max_norms: list[float]) -> tuple[list[float], list[list[float]], list]:
    """Clips the gradients of each step to one norm after another, in the warm-up and after it. Returns by step the norm
    that the last clip reports, the numbers that have been learnt, and the momentum with the weight."""
    model, handle, optimizer = wrap(warmup_steps=4, plan="dense", warmup_plan="dense")
    weight, norms, numbers, tensors = model.module.weight, [], [], []
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        norms.append([optimizer.clip_grad_norm_(max_norm).item() for max_norm in max_norms][-1])
        optimizer.step()
        group, state = optimizer.param_groups[0], optimizer.state[weight]
        usual_factor = handle.state_dict()["usual_share"]
        numbers.append([state["power"], group["norm_squares"], group["power_squares"], usual_factor])
        tensors.append([state["exp_avg"].clone(), weight.detach().clone()])
    return norms, numbers, tensors


@pytest.mark.parametrize("max_norms", [[0.05, 0.05], [0.05, math.inf], [math.inf, 0.05], [0.08, 0.05]])
def test_several_clips_of_a_step_are_as_one(two_ranks, max_norms):
    left, *learnt = two_ranks.run(train_with_clips, max_norms)[0]
    norms, *expected = two_ranks.run(train_with_clips, [0.05])[0]
    assert min(norms) > 0.1
    assert left == pytest.approx([min(norm, max_norms[0]) for norm in norms], rel=1e-3)
    torch.testing.assert_close(learnt[0], expected[0], rtol=1e-3, atol=0.0)
    torch.testing.assert_close(learnt[1], expected[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_the_operators_refuse_what_is_no_floating_dtype(dtype):
    ops, floats = torch.ops.octavo, torch.ones(4)
    odd = torch.zeros(4, dtype=dtype)
    for call in (
        lambda p, g: ops.adamw_(p, g, torch.zeros(4), torch.zeros(4), 1, 1.5, 0.9, 0.99, 1e-8, 0.0),
        lambda p, g: ops.frozen_adamw_(p, g, torch.zeros(4), 0.5, 0.0),
        lambda p, g: ops.sign_step_([p], [g], 0.5, 0.0),
    ):
        for parameter, gradient in ((odd, floats), (floats, odd)):
            with pytest.raises(ValueError, match=r"^\[optim\.\w+\] expected .* of a floating dtype"):
                call(parameter, gradient)
    assert not odd.any() and torch.equal(floats, torch.ones(4))


def test_numbers_of_a_step_are_single_and_of_their_dtype():
    def step(**numbers: torch.Tensor) -> None:
        one = [torch.ones(4)]
        lists = dict(parameters=one, gradients=[torch.ones(4)], momenta=[torch.zeros(4)], scales=[], tails=[])
        torch.ops.octavo.lion_(**lists, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, **numbers)

    step(gradient_factor=torch.tensor(1.0), nonfinite=torch.tensor(0, dtype=torch.int32))
    for factor in (torch.ones(1), torch.ones((), dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"^\[optim\.lion\] expected a gradient factor as float32\[\] on cpu"):
            step(gradient_factor=factor)
    for flag in (torch.zeros(1, dtype=torch.int32), torch.tensor(0)):
        with pytest.raises(ValueError, match=r"^\[optim\.lion\] expected a nonfinite flag as int32\[\] on cpu"):
            step(nonfinite=flag)


def test_a_finite_gradient_whose_norm_overflows_in_float32_is_clipped():
    weight = nn.Parameter(torch.zeros(1 << 16))
    weight.grad = torch.full_like(weight, 1e18)  # the squares add up to 6.6e40
    optimizer = OneBitAdamW([weight], lr=0.1, warmup_steps=10)
    assert optimizer.clip_grad_norm_(256.0).item() == pytest.approx(2.56e20)
    torch.testing.assert_close(weight.grad, torch.ones_like(weight))
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, -0.1))
