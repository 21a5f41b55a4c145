# SPDX-License-Identifier: Apache-2.0
"""The plan `auto`: it chooses the same on all ranks, gives its reasons, measures anew when told to, and loses
nothing."""

import pytest
import torch
import torch.distributed as dist
from ddp_runs import OddShapes, batch_of, digest, make, step_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.bench.ddp import _reason

MOST_STEPS = 200


def settle(model, handle, optimizer, rank: int) -> int:
    """Makes steps until `auto` has chosen. Returns how many."""
    for step in range(MOST_STEPS):
        if handle.stats()["auto"]["settled"]:
            return step
        step_once(model, optimizer, rank, step)
    raise AssertionError(f"nothing was chosen in {MOST_STEPS} steps: {handle.stats()['auto']}")


def choose(rank: int) -> tuple[list, str, str]:
    model, handle, optimizer = make("auto:sign;narrow.*=int8+ef")
    assert settle(model, handle, optimizer, rank) >= 10
    choice = handle.stats()["auto"]
    assert choice["measurements"] >= 1 and choice["measured_steps"] >= 10 and choice["measured_s"] > 0
    buckets = choice["buckets"]
    names = {name for name, parameter in OddShapes().named_parameters() if parameter.requires_grad}
    assert len(buckets) > 1 and {name for bucket in buckets for name in bucket["parameters"]} == names
    for bucket in buckets:
        assert set(bucket["alone"]) == {"dense", "bf16", "int8+ef", "int4+ef", "sign+ef"}
        assert all(0 < cost["codec_s"] < 60 and 0 <= cost["link_s"] < 60 for cost in bucket["alone"].values())
    for parameter in handle.parameter_stats():
        (bucket,) = (bucket for bucket in buckets if parameter["name"] in bucket["parameters"])
        name = parameter["name"]
        exempt = octavo.parameters.is_exempt_by_default(name, model.module.get_parameter(name))
        expected = "dense" if exempt else "int8+ef" if name == "narrow.weight" else bucket["plan"]
        assert parameter["plan"] == expected, name
    return [bucket["plan"] for bucket in buckets], digest(model), _reason(choice)


def test_all_ranks_choose_alike(two_ranks):
    (plans, first, reason), (others, second, _) = two_ranks.run(choose)
    assert plans == others and first == second
    assert "after" in reason and plans[0] in reason


def resume(rank: int) -> tuple[str, str]:
    model, handle, optimizer = make("auto")
    settle(model, handle, optimizer, rank)
    state = handle.state_dict()
    assert state["plan"] == "auto"
    model, handle, optimizer = make("auto")
    handle.load_state_dict(state)
    settle(model, handle, optimizer, rank)
    handle.set_plan("int4+ef")
    assert "auto" not in handle.stats()
    step_once(model, optimizer, rank, 1)
    handle.set_plan("auto:bf16")  # what int4+ef has left out is sent
    step_once(model, optimizer, rank, 2)
    assert not [key for key, value in handle.state_dict().items() if torch.is_tensor(value)]
    settle(model, handle, optimizer, rank)
    return digest(model), str(handle.plan)


def test_a_state_and_a_new_plan_are_measured_anew(two_ranks):
    first, second = two_ranks.run(resume)
    assert first == second and first[1] == "auto:bf16"


def refusals(rank: int) -> None:
    with pytest.raises(ValueError, match="a single call has none: name the plan"):
        octavo.all_reduce(torch.ones(8), "auto")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = octavo.optim.OneBitAdamW(model.parameters(), warmup_steps=9)
    with pytest.raises(ValueError, match="a plan that stays the same"):
        octavo.compress(model, "auto", optimizer=optimizer)
    octavo.compress(model, "sign+ef", optimizer=optimizer)
    dist.barrier()


def test_it_is_refused_where_it_cannot_choose(two_ranks):
    two_ranks.run(refusals)


def warm_up_of_onebit(rank: int) -> str:
    torch.manual_seed(0)
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    optimizer = octavo.optim.OneBitAdamW(model.parameters(), lr=1e-3, warmup_plan="auto", warmup_steps=20)
    handle = octavo.compress(model, "sign+ef", optimizer=optimizer)
    for step in range(24):
        optimizer.zero_grad()
        model(batch_of(rank, step)).square().mean().backward()
        optimizer.step()
    assert str(handle.plan) != "auto"
    return digest(model)


def test_a_onebit_optimizer_may_warm_up_by_it(two_ranks):
    first, second = two_ranks.run(warm_up_of_onebit)
    assert first == second
