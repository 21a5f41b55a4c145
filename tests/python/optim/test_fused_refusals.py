# SPDX-License-Identifier: Apache-2.0
"""A step or a load that a fused optimizer refuses leaves all parameter groups as they were."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from fused_runs import MAKERS, give_gradients, parameters_of, randn, tensors_of
from torch import Tensor, nn

from octavo.optim import Adam, AdamW, AdamW4bit, AdamW8bit, Lion, Lion8bit, PagedAdamW8bit, to_bitsandbytes, to_torch


def expanded(parameters: list[nn.Parameter], _: torch.optim.Optimizer) -> None:
    parameters[-1].data = torch.ones(()).expand(4097)


def pruned(parameters: list[nn.Parameter], _: torch.optim.Optimizer) -> None:
    parameters[-1].data = parameters[-1].data[:4096].clone()


def of_another_dtype(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state[parameters[-1]]
    name = next(iter(state.keys() & {"exp_avg", "exp_avg_codes"}))
    state[name] = state[name].double()


def of_other_bits(_: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[-1]["optim_bits"] = 4


@pytest.mark.parametrize(
    ("make", "spoil", "words"),
    [
        (make, spoil, words)
        for make in (AdamW, AdamW8bit, Lion, Lion8bit)
        for spoil, words in (
            (expanded, r"expected parameter 1 with memory for each element, got strides \[0\]"),
            (pruned, r"mean 1 as .*4096.*, got .*4097"),
            (of_another_dtype, r"mean 1 as float32.*, got Double"),
        )
    ]
    + [(AdamW8bit, of_other_bits, "optim_bits of the states that are there"), (Lion8bit, of_other_bits, "optim_bits")],
)
def test_a_step_that_one_group_refuses_moves_no_other(make, spoil, words):
    parameters = [nn.Parameter(randn(number, size)) for number, size in enumerate(((70, 65), (3,), (4097,)))]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.1}]
    optimizer = make(groups)
    give_gradients(parameters, 0)
    optimizer.step()
    spoil(parameters, optimizer)
    give_gradients(parameters, 1)
    before = [tensor.clone() for tensor in tensors_of(optimizer)]
    with pytest.raises(ValueError, match=words):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(optimizer), before, strict=True))


@pytest.mark.parametrize("make", [AdamW, Lion8bit])
def test_a_step_of_one_group_refuses_an_expanded_parameter_before_it_moves(make):
    parameters = [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(()).expand(8))]
    optimizer = make(parameters)
    give_gradients(parameters, 0)
    with pytest.raises(ValueError, match="expected parameter 1 with memory for each element"):
        optimizer.step()
    assert torch.equal(parameters[0], torch.ones(8))
    assert all(float(tensor.sum()) == 0 for state in optimizer.state.values() for tensor in state.values())


def test_a_step_that_is_refused_keeps_the_clip_for_the_next():
    moved = []
    for is_refused in (False, True):
        parameter = nn.Parameter(torch.zeros(8))
        optimizer = AdamW([parameter], lr=0.1, eps=1.0)
        parameter.grad = torch.full((8,), 100.0)
        optimizer.clip_grad_norm_(1.0)
        if is_refused:
            optimizer.param_groups[0]["nonfinite"] = "ignore"
            with pytest.raises(ValueError, match="nonfinite"):
                optimizer.step()
            optimizer.param_groups[0]["nonfinite"] = "raise"
        optimizer.step()
        moved.append(parameter.detach())
    assert torch.equal(*moved)
    parameter.grad = torch.full((8,), 100.0)
    optimizer.step()
    assert float(parameter[0].detach()) < 1.5 * float(moved[0][0]), "a clip is for one step"


def test_a_clip_to_a_norm_that_is_not_finite_ends_with_the_step_that_is_refused():
    parameter = nn.Parameter(torch.zeros(8))
    optimizer = AdamW([parameter], lr=0.1, nonfinite="raise")
    parameter.grad = torch.ones(8)
    parameter.grad[0] = float("nan")
    optimizer.clip_grad_norm_(1.0)
    with pytest.raises(FloatingPointError):
        optimizer.step()
    parameter.grad[0] = 1.0
    optimizer.step()
    assert bool((parameter < 0).all())


def test_the_bits_of_a_group_are_asked_of_a_parameter_that_has_codes():
    parameters = [nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(4096))]
    optimizer = AdamW8bit(parameters)
    give_gradients(parameters, 0)
    optimizer.step()
    optimizer.param_groups[0]["optim_bits"] = 32
    with pytest.raises(ValueError, match=r"optim_bits of the states that are there; .* got 32"):
        optimizer.step()


@pytest.mark.parametrize("make", [AdamW8bit, AdamW4bit])
@pytest.mark.parametrize(("name", "value"), [("exp_avg_sq", float("inf")), ("exp_avg", float("nan"))])
def test_a_saved_value_that_is_not_finite_spoils_no_block(make, name, value):
    parameters = parameters_of()
    torchs = torch.optim.AdamW(parameters)
    give_gradients(parameters, 0)
    torchs.step()
    torchs.state[parameters[1]][name][7] = value
    optimizer = make(parameters_of())
    with pytest.raises(ValueError, match=f"the saved {name} has values that are not finite"):
        optimizer.load_state_dict(torchs.state_dict())
    assert not optimizer.state
    AdamW(parameters_of()).load_state_dict(torchs.state_dict())  # without codes, only one element is affected


def call_and_tell(step: Callable[[], object], answer: object) -> None:
    torch.set_num_threads(1)
    try:
        step()
        answer.put("done")
    except RuntimeError as error:
        answer.put(str(error))


def in_child(step: Callable[[], object]) -> str:
    """Returns what `step` tells from a forked process."""
    fork = get_context("fork")
    answer = fork.Queue()
    child = fork.Process(target=call_and_tell, args=(step, answer))
    child.start()
    said = answer.get(timeout=60)
    child.join(60)
    return said


@pytest.mark.parametrize("name", ["PagedAdamW8bit", "OneBitAdamW", "OneBitLamb", "ZeroOneAdam"])
def test_a_forked_process_does_not_go_on_in_the_files_of_its_parent(tmp_path: Path, name: str) -> None:
    parameter = nn.Parameter(torch.ones(4096))
    optimizer = MAKERS[name]([parameter], is_paged=True, page_dir=str(tmp_path))
    parameter.grad = torch.ones(4096)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())

    def after_a_load_that_is_refused() -> None:
        other = AdamW([nn.Parameter(torch.ones(3))])
        with pytest.raises(ValueError, match="parameter group"):
            optimizer.load_state_dict(other.state_dict() | {"param_groups": []})
        with pytest.raises(ValueError, match="nothing has changed"):
            optimizer.load_state_dict(saved | {"state": {0: {"step": 1.0}}})
        optimizer.step()

    def after_load() -> None:
        optimizer.load_state_dict(saved)
        optimizer.step()
        optimizer.state_dict()

    before = copy.deepcopy(optimizer.state[parameter])
    for step in (optimizer.step, after_a_load_that_is_refused):
        assert f"page_dir belong to process {os.getpid()}" in in_child(step)
    assert in_child(after_load) == "done"
    torch.testing.assert_close(optimizer.state[parameter], before, rtol=0.0, atol=0.0)
    optimizer.step()

    def after_a_load_without_room() -> None:
        shutil.rmtree(tmp_path)
        with pytest.raises(ValueError, match=r"expected a directory in which a file can be made, .*No such file"):
            optimizer.load_state_dict(saved)
        optimizer.step()

    assert "page_dir belong to process" in in_child(after_a_load_without_room)


WAYS_OUT = {
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "copy": copy.deepcopy,
    "to_torch": to_torch,
    "to_bitsandbytes": to_bitsandbytes,
}


@pytest.mark.parametrize("is_in_files", [True, False])
@pytest.mark.parametrize(
    ("name", "way"),
    [("PagedAdamW8bit", way) for way in WAYS_OUT]
    + [(name, way) for name in ("OneBitAdamW", "ZeroOneAdam") for way in ("state_dict", "copy")],
)
def test_a_forked_process_saves_no_state_that_its_parent_may_be_changing(
    tmp_path: Path, name: str, way: str, is_in_files: bool
) -> None:
    """Other memory, managed or not, is the child's own: there it has the states as they were at the fork."""
    parameter = nn.Parameter(torch.ones(4096))
    optimizer = MAKERS[name]([parameter], is_paged=True, page_dir=str(tmp_path) if is_in_files else None)
    parameter.grad = torch.ones(4096)
    optimizer.step()
    said = in_child(lambda: WAYS_OUT[way](optimizer))
    assert (f"page_dir belong to process {os.getpid()}" in said) == is_in_files
    assert (said == "done") != is_in_files


def test_an_optimizer_whose_first_step_is_in_a_forked_process_goes_on_there(tmp_path: Path) -> None:
    parameters = parameters_of()
    groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
    optimizer = PagedAdamW8bit(groups, page_dir=str(tmp_path))
    give_gradients(parameters, 0)

    def two_steps() -> None:
        optimizer.step()
        optimizer.step()

    assert in_child(two_steps) == "done"


def test_a_directory_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no directory"):
        PagedAdamW8bit(parameters_of(), page_dir=str(tmp_path / "none"))


def test_adam_and_adamw_are_told_apart_in_our_own_states_too():
    def trained(make: type) -> torch.optim.Optimizer:
        parameters: list[Tensor] = parameters_of()
        optimizer = make(parameters, weight_decay=0.1)
        give_gradients(parameters, 0)
        optimizer.step()
        return optimizer

    with pytest.raises(ValueError, match="expected the state of an Adam, got that of an AdamW"):
        Adam(parameters_of()).load_state_dict(trained(AdamW).state_dict())
    with pytest.raises(ValueError, match="expected the state of an AdamW, got that of an Adam"):
        AdamW8bit(parameters_of()).load_state_dict(trained(Adam).state_dict())
    for make in (Adam, AdamW):
        kind = to_torch(trained(make))["param_groups"][0]["decoupled_weight_decay"]
        assert kind == (make is AdamW)
    assert "decoupled_weight_decay" not in to_bitsandbytes(trained(AdamW))["param_groups"][0]
    with pytest.raises(ValueError, match=r"expected decoupled_weight_decay=False; octavo\.optim\.AdamW has the other"):
        Adam(parameters_of(), decoupled_weight_decay=True)
    Adam(parameters_of(), decoupled_weight_decay=False)
