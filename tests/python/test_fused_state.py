# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers keep and where, what they do around a step, and how their state goes round."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from octavo import _C
from octavo.optim import (
    Adam,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    DistributedLion,
    Lion,
    Lion8bit,
    PagedAdam8bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedLion8bit,
)

PAIRS = [(AdamW, PagedAdamW), (AdamW8bit, PagedAdamW8bit), (Lion8bit, PagedLion8bit)]
SIZES = ((70, 65), (4097,), (3,), ())


def randn(seed: int, shape: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameters_of(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(randn(number, size).to(dtype)) for number, size in enumerate(SIZES)]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(parameters):
        parameter.grad = randn(100 * step + number, parameter.shape).to(parameter.dtype)


def run(make: Any, steps: range, parameters: list[nn.Parameter] | None = None, **options: Any) -> Any:
    """The parameters and the optimizer after some steps."""
    parameters = parameters_of() if parameters is None else parameters
    optimizer = make(parameters, **options)
    go_on(optimizer, steps)
    return parameters, optimizer


def go_on(optimizer: torch.optim.Optimizer, steps: range) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        give_gradients(parameters, step)
        optimizer.step()


def tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters and all state, in order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.detach() for p in parameters] + [t for p in parameters for t in optimizer.state[p].values()]


def same(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    pairs = zip(tensors_of(a), tensors_of(b), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y) for x, y in pairs)


def is_all_paged(optimizer: torch.optim.Optimizer) -> bool:
    states = [(name, t) for state in optimizer.state.values() for name, t in state.items()]
    return bool(states) and all(_C.is_managed(t) == (name != "step") for name, t in states)


# ---- paging


@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize(("make", "make_paged"), PAIRS)
def test_paged_is_unpaged_to_the_bit_over_a_thousand_steps(make, make_paged, place, tmp_path):
    gc.collect()
    kind = "file" if place == "files" else "host"
    before = _C.arena_stats()[kind]["live_bytes"]
    options = {"page_dir": str(tmp_path)} if place == "files" else {}
    _, unpaged = run(make, range(1000))
    _, paged = run(make_paged, range(1000), **options)
    assert same(unpaged, paged)
    assert is_all_paged(paged) and not any(_C.is_managed(t) for t in tensors_of(unpaged))
    state = paged.state_dict()["state"]
    assert _C.arena_stats()[kind]["live_bytes"] - before == sum(
        t.nbytes for s in state.values() for name, t in s.items() if name != "step"
    )
    del paged, state
    gc.collect()
    assert _C.arena_stats()[kind]["live_bytes"] == before


def test_small_states_stay_in_ordinary_memory_where_min_paged_size_says():
    parameters, optimizer = run(PagedAdamW8bit, range(1), min_paged_size=4500)
    assert [_C.is_managed(optimizer.state[p]["exp_avg"]) for p in parameters] == [True, False, False, False]
    assert [optimizer.state[p]["exp_avg"].dtype for p in parameters] == [torch.uint8] * 2 + [torch.float32] * 2


# ---- copies and checkpoints


def through_pickle(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
@pytest.mark.parametrize("make", [AdamW8bit, PagedAdamW8bit, AdamW4bit])
def test_copies_go_on_as_the_original(make, copied, tmp_path):
    options = {"page_dir": str(tmp_path)} if make is PagedAdamW8bit else {}
    _, optimizer = run(make, range(3), bf16_rounding="extra_bits", **options)
    other = copied(optimizer)
    for one in (optimizer, other):
        go_on(one, range(3, 6))
    assert same(optimizer, other) and not other.saw_nonfinite()
    assert is_all_paged(other) == (make is PagedAdamW8bit)
    if make is PagedAdamW8bit:
        assert {arena.stats()["kind"] for arena in other._arenas.values()} == {"file"}


def through_torch_save(state: dict, folder: Path) -> dict:
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", map_location="cpu", weights_only=True)


def through_safetensors(state: dict, folder: Path) -> dict:
    tensors = {f"{key}/{name}": t for key, s in state["state"].items() for name, t in s.items()}
    save_file(tensors, folder / "state.safetensors")
    states: dict[int, dict[str, Tensor]] = {key: {} for key in state["state"]}
    for name, tensor in load_file(folder / "state.safetensors").items():
        states[int(name.split("/")[0])][name.split("/")[1]] = tensor
    return {"state": states, "param_groups": state["param_groups"]}


@pytest.mark.parametrize("saved", [through_torch_save, through_safetensors])
@pytest.mark.parametrize("make", [AdamW, AdamW8bit, AdamW4bit, PagedAdamW8bit, PagedLion8bit])
@pytest.mark.parametrize("rounding", ["extra_bits", "stochastic"])
def test_a_resumed_run_is_the_run_to_the_bit(make, saved, rounding, tmp_path):
    options = {"bf16_rounding": rounding, "weight_decay": 0.1, "seed": 5}
    parameters, optimizer = run(make, range(4), parameters_of(torch.bfloat16), **options)
    state = saved(optimizer.state_dict(), tmp_path)
    resumed = make([nn.Parameter(p.detach().clone()) for p in parameters])  # options come with the state
    resumed.load_state_dict(state)
    del state
    for one in (optimizer, resumed):
        go_on(one, range(4, 8))
    assert same(optimizer, resumed)
    assert is_all_paged(resumed) == make.__name__.startswith("Paged")
    keys = ("lr", "betas", "weight_decay", "optim_bits", "is_paged", "bf16_rounding", "seed")
    assert [resumed.param_groups[0][k] for k in keys] == [optimizer.param_groups[0][k] for k in keys]


def test_a_load_replaces_all_state_and_its_hooks_see_the_new_one():
    """The state from before the first step has no moments: those of after it must not survive."""
    parameters, optimizer = run(AdamW8bit, range(0))
    fresh = copy.deepcopy(optimizer.state_dict())
    go_on(optimizer, range(2))
    later = copy.deepcopy(optimizer.state_dict())
    seen: list[Any] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(len(state["state"])))
    optimizer.register_load_state_dict_post_hook(lambda one: seen.append(len(one.state)))
    optimizer.load_state_dict(fresh)
    assert not optimizer.state and seen == [0, 0]
    optimizer.load_state_dict(later)
    assert seen[2:] == [4, 4] and int(optimizer.state[parameters[0]]["step"]) == 2

    def without_first(_: Any, state: dict) -> dict:
        return {**state, "state": {key: value for key, value in state["state"].items() if key != 0}}

    optimizer.register_load_state_dict_pre_hook(without_first)
    optimizer.load_state_dict(later)
    assert parameters[0] not in optimizer.state and parameters[1] in optimizer.state


def spoiled(state: dict, how: str) -> dict:
    state = copy.deepcopy(state)
    group, last = state["param_groups"][0], state["state"][3]
    if how == "shape":
        last["exp_avg"] = torch.zeros(5)
    elif how == "dtype":
        state["state"][1]["exp_avg"] = state["state"][1]["exp_avg"].float()
    elif how == "no tensor":
        last["exp_avg"] = "x"
    elif how == "no dictionary":
        state["state"][3] = "x"
    elif how == "missing":
        del last["exp_avg"]
    elif how == "unknown":
        last["max_exp_avg_sq"] = torch.zeros(())
    elif how == "option":
        group["optim_bits"] = 5
    elif how == "groups":
        state["param_groups"].append(copy.deepcopy(group))
    elif how == "count":
        group["params"] = group["params"][:-1]
    return state


HOWS = ["shape", "dtype", "no tensor", "no dictionary", "missing", "unknown", "option", "groups", "count"]


@pytest.mark.parametrize("how", HOWS)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(how):
    _, optimizer = run(PagedAdamW8bit, range(2), lr=0.5)
    _, other = run(PagedAdamW8bit, range(3), lr=0.25)
    before, groups = copy.deepcopy(optimizer), optimizer.param_groups
    with pytest.raises(ValueError):
        optimizer.load_state_dict(spoiled(other.state_dict(), how))
    assert optimizer.param_groups is groups and groups[0]["lr"] == 0.5
    assert same(optimizer, before) and is_all_paged(optimizer)
    go_on(optimizer, range(2, 4))
    go_on(before, range(2, 4))
    assert same(optimizer, before)


@pytest.mark.parametrize(
    ("make", "other"), [(Lion, AdamW), (AdamW, Lion), (Lion8bit, AdamW8bit), (AdamW, torch.optim.SGD), (Lion, Adam)]
)
def test_the_state_of_another_optimizer_is_refused(make, other):
    _, saved = run(other, range(1))
    _, optimizer = run(make, range(1), lr=0.5)
    before = [t.clone() for t in tensors_of(optimizer)]
    with pytest.raises(ValueError, match="another optimizer"):
        optimizer.load_state_dict(saved.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


def test_no_room_for_the_loaded_state_changes_nothing(tmp_path):
    _, other = run(PagedAdamW8bit, range(3), lr=0.25)
    _, optimizer = run(PagedAdamW8bit, range(0), lr=0.5, page_dir=str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="No such file or directory"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state


def test_options_that_a_saved_state_lacks_are_the_optimizers_own():
    """As a state from before there was an option has it."""
    _, optimizer = run(AdamW8bit, range(2))
    state = optimizer.state_dict()
    del state["param_groups"][0]["nonfinite"]
    _, other = run(AdamW8bit, range(0), nonfinite="raise")
    other.load_state_dict(state)
    assert other.param_groups[0]["nonfinite"] == "raise"
    go_on(other, range(2, 3))


# ---- options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("optim_bits", 16),
        ("nonfinite", "ignore"),
        ("bf16_rounding", "up"),
        ("lr", -1.0),
        ("lr", float("nan")),
        ("weight_decay", -0.1),
        ("betas", (1.0, 0.9)),
        ("eps", -1e-8),
    ],
)
def test_options_out_of_range_are_refused_and_leave_no_group(option, value):
    with pytest.raises(ValueError, match=option):
        AdamW(parameters_of(), **{option: value})
    _, optimizer = run(AdamW, range(1))
    with pytest.raises(ValueError, match=option):
        optimizer.add_param_group({"params": parameters_of(), option: value})
    assert len(optimizer.param_groups) == 1


def test_distributed_lion_refuses_a_group_of_other_betas_and_stays_as_it_was():
    optimizer = DistributedLion(parameters_of(), betas=(0.9, 0.99))
    with pytest.raises(ValueError, match="same betas"):
        optimizer.add_param_group({"params": parameters_of(), "betas": (0.5, 0.99)})
    assert len(optimizer.param_groups) == 1


def test_groups_have_options_of_their_own_and_save_them():
    first, second = parameters_of()[0], parameters_of()[1]
    optimizer = AdamW([{"params": [first]}, {"params": [second], "optim_bits": 8, "is_paged": True, "lr": 0.5}])
    go_on(optimizer, range(2))
    assert optimizer.state[first]["exp_avg"].dtype == torch.float32
    assert optimizer.state[second]["exp_avg"].dtype == torch.uint8 and _C.is_managed(optimizer.state[second]["exp_avg"])
    other = AdamW([{"params": [nn.Parameter(p.detach().clone())]} for p in (first, second)])
    other.load_state_dict(optimizer.state_dict())
    for one in (optimizer, other):
        go_on(one, range(2, 4))
    assert same(optimizer, other)


def test_a_schedule_a_closure_and_a_scaler_of_torch_work():
    parameters, optimizer = run(AdamW8bit, range(0), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(parameter.square().sum() for parameter in parameters)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    expected = copy.deepcopy(optimizer)
    give_gradients([p for g in expected.param_groups for p in g["params"]], 1)
    expected.step()
    scaler.scale(torch.ones(()))
    give_gradients(parameters, 1)
    for parameter in parameters:
        parameter.grad *= 4
    scaler.step(optimizer)
    scaler.update()
    assert same(optimizer, expected)
    before = [t.clone() for t in tensors_of(optimizer)]
    parameters[0].grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


# ---- gradients that are not finite, clipping, steps in backward


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


@pytest.mark.parametrize("policy", ["skip_step", "raise"])
@pytest.mark.parametrize("place", [0, 3])
def test_other_policies_leave_all_groups_as_they_are(policy, place):
    """Also the groups before that of the bad gradient, and a tensor of no elements has no bad one."""
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


def test_zero_grad_forgets_a_clip_that_no_step_took():
    """As a GradScaler's skipped step leaves one."""
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
    """Also where some parameters came late, so that their steps are not those of the first."""
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
            if step == 2:  # a load makes groups anew, and schedules write into those
                optimizer.load_state_dict(optimizer.state_dict())
        for handle in handles:
            handle.remove()
        sum(p.float().sum() for p in parameters).backward()
        assert all(p.grad is not None for p in parameters)
        ends.append(optimizer)
    assert same(*ends)


# ---- rounding


def rounded_runs(rounding: str, steps: int, seed: int = 0) -> Tensor:
    """A bfloat16 parameter of 4 that loses 1e-3 in every step: less than half of its last place."""
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
    """A parameter's own step draws them: that of the first of its group may stand still."""
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


def test_the_state_is_of_plain_tensors_and_bytes_are_as_promised():
    parameter = nn.Parameter(torch.zeros(1 << 16))
    bytes_of = {}
    for make in (AdamW, AdamW8bit, AdamW4bit, PagedAdam8bit, Lion8bit):
        parameter.grad = torch.ones_like(parameter)
        optimizer = make([parameter])
        optimizer.step()
        state = optimizer.state[parameter]
        assert all(type(t) is Tensor for t in state.values())
        bytes_of[make] = sum(t.nbytes for name, t in state.items() if name != "step") / parameter.numel()
    assert list(bytes_of.values()) == [8, 2.03125, 1.0625, 2.03125, 1.015625]


# ---- memory order, and paging of who loads


@pytest.mark.parametrize("optimizer_class", [AdamW, AdamW8bit, AdamW4bit])
def test_another_memory_order_of_a_parameter_changes_nothing(optimizer_class: type[AdamW]) -> None:
    """A scale belongs to elements that follow each other: codes in the parameter's own order would lose theirs."""

    def train(is_moved: bool) -> Tensor:
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(64, 32, 3, 3))
        rows = torch.logspace(-3, 0, 64).reshape(64, 1, 1, 1)
        optimizer = optimizer_class([parameter], lr=1e-2)
        for step in range(4):
            if is_moved and step == 2:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
            parameter.grad = rows * torch.randn(64, 32, 3, 3, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return parameter.detach().contiguous()

    assert torch.equal(train(False), train(True))


def test_codes_in_another_order_are_refused() -> None:
    parameter = torch.nn.Parameter(torch.randn(64, 128))
    optimizer = AdamW8bit([parameter])
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.state[parameter]["exp_avg"] = optimizer.state[parameter]["exp_avg"].t().contiguous().t()
    with pytest.raises(ValueError, match=r"^\[optim\.adam\] expected mean 0 as .* row-major"):
        optimizer.step()


def test_paging_is_that_of_who_loads() -> None:
    """Who ran out of memory goes on with a paged class, from the same checkpoint."""
    parameter = torch.nn.Parameter(torch.randn(5000))
    parameter.grad = torch.randn_like(parameter)
    unpaged, paged = AdamW8bit([parameter]), PagedAdamW8bit([parameter])
    unpaged.step()
    paged.load_state_dict(unpaged.state_dict())
    assert _C.is_managed(paged.state[parameter]["exp_avg"])
    assert torch.equal(paged.state[parameter]["exp_avg"], unpaged.state[parameter]["exp_avg"])
    unpaged.load_state_dict(paged.state_dict())
    assert not _C.is_managed(unpaged.state[parameter]["exp_avg"])
