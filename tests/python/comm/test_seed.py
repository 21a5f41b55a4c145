# SPDX-License-Identifier: Apache-2.0
"""The seed of a run, from which plans draw."""

import pytest
import torch
from ddp_runs import OddShapes, digest, step_once
from torch.nn.parallel import DistributedDataParallel

import octavo


def make(plan: str, **options) -> tuple[DistributedDataParallel, octavo.Handle, torch.optim.Optimizer]:
    model = DistributedDataParallel(OddShapes())
    return model, octavo.compress(model, plan, **options), torch.optim.SGD(model.parameters(), lr=0.05)


def train(rank: int, options: dict) -> str:
    model, _, optimizer = make("randomk:0.1+ef", **options)
    for step in range(2):
        step_once(model, optimizer, rank, step)
    return digest(model)


def test_runs_with_other_seeds_are_other_samples(two_ranks):
    runs = [two_ranks.run(train, options) for options in ({}, {"seed": 0}, {"seed": 1}, {"seed": 2**64 - 1})]
    assert all(first == second for first, second in runs)
    assert runs[0] == runs[1] and len({first for first, _ in runs}) == 3


def save_and_resume(rank: int) -> None:
    model, handle, optimizer = make("int8:stochastic+ef", seed=3)
    for step in range(2):
        step_once(model, optimizer, rank, step)
    state = handle.state_dict()
    assert state["seed"] == 3
    resumed, resumed_handle, resumed_optimizer = make("int8:stochastic+ef")
    resumed.module.load_state_dict(model.module.state_dict())
    resumed_handle.load_state_dict(state)
    for step in range(2, 4):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)
    # like states from before there were seeds
    without_seed = {key: value for key, value in state.items() if key != "seed"}
    resumed_handle.load_state_dict(without_seed)
    assert resumed_handle.state_dict()["seed"] == 0
    with pytest.raises(ValueError, match="got those of the seeds 0, 3"):
        resumed_handle.load_state_dict([{**state, "rank": 0}, {**without_seed, "rank": 1}])


def test_a_state_goes_on_with_its_seed(two_ranks):
    two_ranks.run(save_and_resume)


def refuse(rank: int) -> None:
    with pytest.raises(ValueError, match="all ranks must have the same seed; rank 1 differs from rank 0"):
        make("int4+ef", seed=rank)
    for seed in (-1, 2**64, "1"):
        with pytest.raises(ValueError, match=r"\[compression\.compress\] seed must be an integer from 0 to 2\^64 - 1"):
            make("int4+ef", seed=seed)
        with pytest.raises(ValueError, match=r"\[collectives.all_reduce\] seed must be"):
            octavo.all_reduce(torch.ones(4), seed=seed)
    with pytest.raises(RuntimeError, match="or with another plan, operation, seed or number of the call"):
        octavo.all_reduce(torch.ones(1000), seed=rank)


def test_seeds_that_differ_or_are_none_are_refused(two_ranks):
    two_ranks.run(refuse)


def sums(rank: int, seed: int) -> torch.Tensor:
    tensor = torch.arange(1.0, 1001.0)
    octavo.all_reduce(tensor, "randomk:0.1", seed=seed)
    return tensor


def test_a_single_call_draws_from_it_too(two_ranks):
    first, again, other = (two_ranks.run(sums, seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
