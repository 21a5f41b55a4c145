# SPDX-License-Identifier: Apache-2.0
"""What the handle of a compressed DDP model remembers: saved, resumed to the bit, redistributed, and refused where it
does not fit."""

import copy
import warnings

import pytest
import torch
from ddp_runs import Switch, digest, make, resume_on_another_number_of_ranks, save_states, step_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo


def save_and_resume(rank: int, plan: str) -> None:
    model, handle, optimizer = make(plan)
    for step in range(3):
        step_once(model, optimizer, rank, step)
    resumed, resumed_handle, resumed_optimizer = make("int4+ef")
    resumed.module.load_state_dict(model.module.state_dict())
    with pytest.warns(UserWarning, match="saved under plan .*; this handle keeps int4"):
        resumed_handle.load_state_dict(handle.state_dict())
    assert str(resumed_handle.plan) == "int4+ef", "loading a state changes no plan"
    resumed_handle.set_plan(plan)
    if plan != "sign+ef":  # between codecs residuals are kept; to and from a map of tensors they are not
        resumed_handle.load_state_dict(handle.state_dict())
    for step in range(3, 6):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)


@pytest.mark.parametrize(
    "plan",
    [
        "sign+ef",
        "int4+down:int8:stochastic+ef",
        "powersgd:4+ef",
        "powersgd:2:alternating+ef",
        "sketch:0.2+ef",
        "sketch:0.2:exact+ef",
    ],
)
def test_state_dict_resumes_with_the_same_bits(two_ranks, plan):
    two_ranks.run(save_and_resume, plan)


def refuse_states(rank: int) -> None:
    model, handle, optimizer = make("sign+ef")
    other, other_handle, other_optimizer = make("sign+ef")
    for step in range(2):
        step_once(model, optimizer, rank, step)
    good = handle.state_dict()
    worker = next(key for key in good if key.startswith("worker/"))
    for step in range(3):
        step_once(other, other_optimizer, rank, step)
    before = other_handle.state_dict()
    lacking = [({k: v for k, v in good.items() if k != key}, f"no '{key}'") for key in ("plan", "rank", "step")]
    for state, words in (
        ({**good, "world_size": 3}, "this is rank"),
        ({**good, "rank": 7}, "a state is of rank 7, and those of a world of 2 are of ranks below 2"),
        ({**good, "schema": 99}, "schema"),
        ({**good, "schema": []}, r"this one has \[\]"),
        ({**good, "of_momenta": torch.zeros(3)}, "expected 'of_momenta' of the state as True or False"),
        ({**good, "unclipped_steps": -1}, "expected 'unclipped_steps' of the state as a whole number"),
        ({**good, "step": -1}, "expected 'step' of the state as a whole number of 0 or more, got -1"),
        ({**good, "step": 2**70}, "expected 'step' of the state as a whole number of 0 or more, got 118"),
        ({**good, "world_size": True}, "expected 'world_size' of the state as a whole number"),
        ({**good, "tensors": "x"}, "expected 'tensors' of the state as a whole number of 0 or more, got 'x'"),
        ({**good, "memory_orders": "{x"}, "expected 'memory_orders' of the state as JSON, got '{x'"),
        ({**good, "memory_orders": 3}, "expected 'memory_orders' of the state as JSON, got 3"),
        ({**good, worker: good[worker].to("meta")}, f"'{worker}' of the state is on the device meta"),
        ({**good, worker: good[worker] * torch.nan}, f"'{worker}' of the state of rank . has a NaN"),
        ({**good, "seed": -1}, r"seed must be an integer from 0 to 2\^64 - 1"),
        ({**good, "usual_share": "all"}, "expected 'usual_share' of the state as a number from 0 to 1, got 'all'"),
        ({**good, "worker/nobody": torch.zeros(1)}, "nobody"),
        ({k: v for k, v in good.items() if "/" not in k}, "has 0 of its . tensors: torch.distributed.checkpoint loads"),
        *lacking,
    ):
        with pytest.raises(ValueError, match=words):
            other_handle.load_state_dict(state)
    with pytest.raises(ValueError, match=r"of one run saved together, got those of the steps \d, \d+"):
        other_handle.load_state_dict([{**good, "rank": 0, "step": 3}, {**good, "rank": 1, "step": 1}])
    with pytest.raises(TypeError, match="pass what state_dict"):
        other_handle.load_state_dict(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="saved under plan int4"):
            other_handle.load_state_dict({**good, "plan": "int4+ef"})
    after = other_handle.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(v, after[k]) if isinstance(v, torch.Tensor) else v == after[k] for k, v in before.items())


def test_a_state_that_does_not_fit_is_refused(two_ranks):
    two_ranks.run(refuse_states)


def refuse_estimates(rank: int) -> None:
    model, handle, optimizer = make("int8+ef21")
    step_once(model, optimizer, rank, 0)
    good = handle.state_dict()
    estimates = [key for key in good if "estimate" in key.partition("/")[0]]
    assert {key.partition("/")[0] for key in estimates} == {"sent_estimate", "received_estimates", "shared_estimate"}
    for key in estimates:
        with pytest.raises(ValueError, match=f"'{key}' of the state of rank . has a NaN"):
            handle.load_state_dict({**good, key: good[key] * torch.nan})


def test_a_nan_in_an_estimate_is_refused(two_ranks):
    two_ranks.run(refuse_estimates)


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(8, 16, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def laid_out_anew(rank: int) -> str:
    """Changes the memory format of a model after it was wrapped and compressed. Returns the error."""
    model = DistributedDataParallel(Picture())
    octavo.compress(model, "dense")
    x = torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(rank))
    model(x).square().mean().backward()
    model.to(memory_format=torch.channels_last)
    model.zero_grad()
    try:
        model(x).square().mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_model_that_is_laid_out_anew_is_refused(two_ranks):
    """The elements of its averaged gradients would be in other places."""
    for said in two_ranks.run(laid_out_anew):
        assert "now has the strides" in said
        assert "Give the model its memory format before you wrap it" in said


def thawed(rank: int) -> str:
    """Trains a layer that was frozen at octavo.compress, whose gradient comes in the second of two buckets. Returns the
    error of backward."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-5)
    model[0].requires_grad_(False)
    handle = octavo.compress(wrapped, "int4+ef", exempt=[])
    model[0].requires_grad_(True)
    before = handle.state_dict()
    try:
        wrapped(torch.ones(2, 6) * rank).square().mean().backward()
    except RuntimeError as error:
        after = handle.state_dict()
        assert all(torch.equal(after[name], kept) for name, kept in before.items() if isinstance(kept, torch.Tensor))
        return str(error)
    return ""


def test_a_layer_that_was_frozen_at_compress_is_refused_by_the_hooks_way_of_failing(two_ranks):
    """What the first bucket has changed in the meantime is rolled back."""
    for said in two_ranks.run(thawed):
        assert "holds a parameter that the model did not have at octavo.compress, or that was frozen then" in said


def unfrozen_later(rank: int) -> tuple[list[str], str]:
    """Unfreezes a layer that was frozen when DDP wrapped the model, and so is in none of its buckets. Returns the
    warnings of three passes, and what a copy of the handle says."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    handle = octavo.compress(wrapped, "int4+ef", optimizer=octavo.optim.AdamW8bit(model.parameters()))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(3):
            model[0].requires_grad_(step > 0)
            wrapped(torch.ones(2, 6)).square().mean().backward()
    with pytest.raises(TypeError) as refused:
        copy.deepcopy(handle)
    return [said for one in told if (said := str(one.message)).startswith("[ddp.compress]")], str(refused.value)


def test_a_parameter_that_is_unfrozen_later_is_named_once(two_ranks):
    for told, refused in two_ranks.run(unfrozen_later):
        assert len(told) == 1 and told[0].startswith("[ddp.compress] 0.weight was frozen when the model was wrapped")
        assert refused == "[handle.Handle] a handle has connections, so it cannot be copied: save state_dict()"


def load_in_another_memory_format(rank: int) -> str:
    def make(memory_format: torch.memory_format) -> octavo.Handle:
        model = DistributedDataParallel(Picture().to(memory_format=memory_format))
        handle = octavo.compress(model, "int4+ef", exempt=[])
        model(torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
        return handle

    handle, saved = make(torch.channels_last), make(torch.contiguous_format).state_dict()
    before = handle.state_dict()
    try:
        handle.load_state_dict(saved)
    except ValueError as error:
        after = handle.state_dict()
        assert all(torch.equal(v, after[k]) for k, v in before.items() if isinstance(v, torch.Tensor))
        make(torch.channels_last).load_state_dict(before)
        return str(error)
    return ""


def test_residuals_of_another_memory_format_are_refused(two_ranks):
    for said in two_ranks.run(load_in_another_memory_format):
        assert "the elements of conv.weight have another order in memory" in said


def test_residuals_are_redistributed_over_another_number_of_ranks(two_ranks, three_ranks):
    saved = two_ranks.run(save_states, "sign+ef")
    digests = [digest for digest, _ in three_ranks.run(resume_on_another_number_of_ranks, "sign+ef", saved)]
    assert len(set(digests)) == 1


def keep_residual_of_unused(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Switch(), find_unused_parameters=True)
    handle = octavo.compress(model, "sign+ef")
    model(torch.randn(4, 64) + rank, True).square().sum().backward()
    before = handle.state_dict()
    model.zero_grad()
    model(torch.randn(4, 64), False).square().sum().backward()
    after = handle.state_dict()
    assert torch.equal(before["worker/b.weight"], after["worker/b.weight"]), "a residual was sent into the void"
    assert torch.equal(before["owner/b.weight"], after["owner/b.weight"])
    assert not torch.equal(before["worker/a.weight"], after["worker/a.weight"])


def test_an_unused_parameter_keeps_its_residual(two_ranks):
    two_ranks.run(keep_residual_of_unused)
