# SPDX-License-Identifier: Apache-2.0
"""What the fused optimizers keep and where, and how their state is saved and loaded."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_runs import MAKERS, go_on, is_all_paged, parameters_of, run, same, tensors_of
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from octavo import _C
from octavo.optim import (
    Adam,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    Lion,
    Lion8bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedLion8bit,
)

PAIRS = [(AdamW, PagedAdamW), (AdamW8bit, PagedAdamW8bit), (Lion8bit, PagedLion8bit)]

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
    names = ["exp_avg_codes"] * 2 + ["exp_avg"] * 2
    states = [optimizer.state[p][name] for p, name in zip(parameters, names, strict=True)]
    assert [_C.is_managed(state) for state in states] == [True, False, False, False]
    assert [state.dtype for state in states] == [torch.uint8] * 2 + [torch.float32] * 2


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
        assert {arena.stats()["kind"] for arena in other._maker.memory.arenas.values()} == {"file"}


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
    resumed = make([nn.Parameter(p.detach().clone()) for p in parameters])  # the options come with the state
    resumed.load_state_dict(state)
    del state
    for one in (optimizer, resumed):
        go_on(one, range(4, 8))
    assert same(optimizer, resumed)
    assert is_all_paged(resumed) == make.__name__.startswith("Paged")
    keys = ("lr", "betas", "weight_decay", "optim_bits", "is_paged", "bf16_rounding", "seed")
    assert [resumed.param_groups[0][k] for k in keys] == [optimizer.param_groups[0][k] for k in keys]


def test_a_load_replaces_all_state_and_its_hooks_see_the_new_one():
    """The state from before the first step has no moments, so those of later steps must not survive."""
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
        state["state"][1]["exp_avg_codes"] = state["state"][1]["exp_avg_codes"].float()
    elif how == "no tensor":
        last["exp_avg"] = "x"
    elif how == "no dictionary":
        state["state"][3] = "x"
    elif how == "missing":
        del last["exp_avg"]
    elif how == "unknown":
        last["max_exp_avg_sq"] = torch.zeros(())
    elif how == "option":
        group["bf16_rounding"] = "up"
    elif how == "groups":
        state["param_groups"].append(copy.deepcopy(group))
    elif how == "count":
        group["params"] = group["params"][:-1]
    elif how == "infinite scale":
        state["state"][1]["exp_avg_scale"][0] = float("inf")
    elif how == "negative scale":
        state["state"][1]["exp_avg_sq_scale"][0] = -1e-3
    elif how == "negative square":
        state["state"][1]["exp_avg_sq"] = torch.full_like(
            state["state"][1].pop("exp_avg_sq_codes"), -1, dtype=torch.float
        )
        del state["state"][1]["exp_avg_sq_scale"]
    return state


HOWS = {
    "shape": r"expected the saved exp_avg as floats \(\) or as codes .*, got exp_avg torch.float32 \(5,\)",
    "dtype": r"expected the saved exp_avg as floats \(4097,\) or as codes .*, exp_avg_codes torch.float32 \(4097,\)",
    "no tensor": r"expected the saved exp_avg as floats .*, got exp_avg 'x'",
    "no dictionary": "expected a saved state by names, got 'x'",
    "missing": "expected the saved exp_avg .*, got exp_avg None, exp_avg_codes None, exp_avg_scale None",
    "unknown": "amsgrad is not supported, and the saved state has its max_exp_avg_sq",
    "option": "expected bf16_rounding as one of .*, got 'up'",
    "groups": "a different number of parameter groups",
    "count": "a parameter group that doesn't match the size of optimizer's group",
    "infinite scale": "the saved exp_avg has values that are not finite",
    "negative scale": "the saved exp_avg_sq has values below 0",
    "negative square": "the saved exp_avg_sq has values below 0",
}


@pytest.mark.parametrize("scale", [1e-37, 1e-39, 1e-42])
@pytest.mark.parametrize("bits", [8, 32])
def test_the_scale_of_a_block_that_had_no_gradient_for_long_is_zero(scale, bits):
    """bitsandbytes keeps such scales. Below 2^-125 codes would not mean values in their order."""
    parameter = torch.nn.Parameter(torch.ones(512))
    optimizer = AdamW8bit([parameter], lr=1e-3, min_8bit_size=1)
    parameter.grad = torch.ones(512)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg_sq_codes"].copy_(torch.arange(512).remainder(256))
    state["state"][0]["exp_avg_sq_scale"].fill_(scale)
    state["state"][0]["exp_avg_codes"].fill_(127)  # 0
    other = torch.nn.Parameter(torch.ones(512))
    loaded = AdamW8bit([other], lr=1e-3, min_8bit_size=1) if bits == 8 else AdamW([other], lr=1e-3)
    loaded.load_state_dict(state)
    other.grad = torch.zeros(512)
    other.grad[1::2] = 0.01
    loaded.step()
    assert other.isfinite().all() and (1 - other).abs().max() < 0.1
    if bits == 8:
        assert (loaded.state[other]["exp_avg_sq_scale"] > 1e-8).all()


@pytest.mark.parametrize(("how", "words"), HOWS.items())
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(how, words):
    _, optimizer = run(PagedAdamW8bit, range(2), lr=0.5)
    _, other = run(PagedAdamW8bit, range(3), lr=0.25)
    before, groups = copy.deepcopy(optimizer), optimizer.param_groups
    with pytest.raises(ValueError, match=words):
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
    (tmp_path / "gone").mkdir()
    _, optimizer = run(PagedAdamW8bit, range(0), lr=0.5, page_dir=str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="No such file or directory"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state


def test_options_that_a_saved_state_lacks_are_the_optimizers_own():
    """A state that was saved before an option existed lacks it."""
    _, optimizer = run(AdamW8bit, range(2))
    state = optimizer.state_dict()
    del state["param_groups"][0]["nonfinite"]
    _, other = run(AdamW8bit, range(0), nonfinite="raise")
    other.load_state_dict(state)
    assert other.param_groups[0]["nonfinite"] == "raise"
    go_on(other, range(2, 3))


# ---- memory order, and paging of who loads


@pytest.mark.parametrize("optimizer_class", [AdamW, AdamW8bit, AdamW4bit])
def test_another_memory_order_of_a_parameter_changes_nothing(optimizer_class: type[AdamW]) -> None:
    """A scale belongs to consecutive elements: codes in the order of the parameter's own memory would lose theirs."""

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
    state = optimizer.state[parameter]
    state["exp_avg_codes"] = state["exp_avg_codes"].t().contiguous().t()
    with pytest.raises(ValueError, match=r"^\[optim\.adam\] expected mean 0 as .* row-major"):
        optimizer.step()


def test_paging_is_that_of_who_loads() -> None:
    """A run that ran out of memory can go on with a paged class, from the same checkpoint."""
    parameter = torch.nn.Parameter(torch.randn(5000))
    parameter.grad = torch.randn_like(parameter)
    unpaged, paged = AdamW8bit([parameter]), PagedAdamW8bit([parameter])
    unpaged.step()
    paged.load_state_dict(unpaged.state_dict())
    assert _C.is_managed(paged.state[parameter]["exp_avg_codes"])
    assert same(paged, unpaged)
    unpaged.load_state_dict(paged.state_dict())
    assert not _C.is_managed(unpaged.state[parameter]["exp_avg_codes"])


WITHOUT_ROOM = """
import re, resource, torch, octavo
from torch import nn
first, other = nn.Parameter(torch.ones(1000)), nn.Parameter(torch.ones(4000, 4000))
optimizer = octavo.optim.AdamW([first, other], lr=0.1)
for parameter in (first, other):
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
before, step = first.detach().clone(), optimizer.state[first]["step"].item()
other.grad = torch.ones(4000, 4000).t()  # in another memory order: it is copied
used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
try:
    optimizer.step()
    print("it found room")
except RuntimeError:
    print(torch.equal(first, before), optimizer.state[first]["step"].item() == step)
"""


def test_a_step_that_finds_no_memory_for_its_copies_has_changed_nothing():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.parametrize("name", MAKERS)
def test_what_a_program_keeps_in_the_state_stays_there(name):
    """torch copies state that is of no parameter as it is."""
    _, optimizer = run(MAKERS[name], range(1))
    optimizer.state["mean loss"] = 0.5
    go_on(optimizer, range(1, 4))
    _, loaded = run(MAKERS[name], range(1))
    loaded.load_state_dict(optimizer.state_dict())
    for other in (loaded, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.state["mean loss"] == 0.5
        go_on(other, range(4, 5))
