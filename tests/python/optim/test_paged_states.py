# SPDX-License-Identifier: Apache-2.0
"""The state of the handle and of the 1-bit optimizers in managed memory: the same bits, across checkpoints and copies,
and nothing left behind."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_runs import OddShapes, digest, step_once
from fsdp_runs import TiedAndUnused, shard
from fsdp_runs import digest as sharded_digest
from fsdp_runs import step_once as step_sharded
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from zero_runs import TiedAndFrozen
from zero_runs import step_once as step_by_zero

import octavo
from octavo import _C
from octavo.optim import OneBitAdamW, OneBitLamb, ZeroOneAdam

Options = dict[str, Any]
PAGED: Options = dict(is_paged=True)


def require_paged(tensors: list[Tensor], is_paged: bool) -> None:
    filled = [tensor for tensor in tensors if tensor.numel()]
    assert filled
    assert all(_C.is_managed(tensor) == is_paged for tensor in filled)


def require_same(ours: list[tuple[list[str], dict]], theirs: list[tuple[list[str], dict]]) -> None:
    """Checks that each rank has the same digests and the same state."""
    for (digests, state), (other_digests, other) in zip(ours, theirs, strict=True):
        assert digests == other_digests
        assert state.keys() == other.keys()
        for key, value in state.items():
            assert torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key], key


# ---- the handle


def make(plan: str, paging: Options) -> tuple[DistributedDataParallel, octavo.Handle, torch.optim.Optimizer]:
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    return model, octavo.compress(model, plan, **paging), torch.optim.SGD(model.parameters(), lr=0.05)


def train(rank: int, plan: str, paging: Options) -> tuple[list[str], dict]:
    """Trains with a step that is rolled back; everything is built anew in between."""
    model, handle, optimizer = make(plan, paging)
    digests = []
    for step in range(6):
        if step == 2:
            (float("nan") * model(torch.zeros(4, 9, dtype=torch.long)).sum()).backward()
            continue
        if step == 4:
            saved = model.module.state_dict(), handle.state_dict()
            model, handle, optimizer = make(plan, paging)
            model.module.load_state_dict(saved[0])
            handle.load_state_dict(saved[1])
            require_paged(list(handle._compressor.state().tensors.values()), bool(paging))
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    require_paged(list(handle._compressor.state().tensors.values()), bool(paging))
    state = handle.state_dict()
    assert not any(_C.is_managed(value) for value in state.values() if isinstance(value, Tensor)), "they are copies"
    return digests, state


PLANS = ["int4+ef", "sign+ef:8bit", "topk:0.05+ef:0.9+hits", "dgc:0.05", "delta+int4", "int4+econtrol", "powersgd:4+ef"]


@pytest.mark.parametrize("plan", PLANS)
def test_paged_is_unpaged_bit_by_bit(two_ranks, plan):
    require_same(two_ranks.run(train, plan, PAGED), two_ranks.run(train, plan, {}))


def hosts(rank: int, paging: Options) -> tuple[list[str], dict]:
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    handle = octavo.compress(model, "int4+ef", ranks_per_host=2, **paging)
    optimizer, digests = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in range(3):
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    require_paged(list(handle._compressor.state().tensors.values()), bool(paging))
    return digests, handle.state_dict()


def test_between_hosts(four_ranks):
    require_same(four_ranks.run(hosts, PAGED), four_ranks.run(hosts, {}))


def sharded(rank: int, paging: Options) -> tuple[list[str], dict]:
    model = shard(TiedAndUnused())
    handle = octavo.compress(model, "int4+ef", **paging)
    optimizer, digests = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in range(3):
        step_sharded(model, optimizer, rank, step)
        digests.append(sharded_digest(model))
    require_paged(list(handle._compressor.state().tensors.values()), bool(paging))
    return digests, handle.state_dict()


def test_on_shards(two_ranks):
    require_same(two_ranks.run(sharded, PAGED), two_ranks.run(sharded, {}))


def by_zero(rank: int, stage: int, paging: Options) -> tuple[list[str], dict]:
    """Trains with an engine that is built anew after 2 steps, from a checkpoint of everything but its own options."""
    digests, state = [], None
    for _ in range(2):
        config = {"zero_stage": stage, "plan": "int4+ef", "bucket_mib": 0.02} | paging
        engine = octavo.initialize(model := TiedAndFrozen(), torch.optim.SGD(model.parameters(), lr=0.05), config)
        if state is not None:
            engine.handle.load_state_dict(state)
        for batch in range(2):
            step_by_zero(engine, rank, batch)
            digests.append(digest(nn.ParameterList(part.values.detach().to_local() for part in engine.parts.values())))
        require_paged(list(engine.handle._compressor.state().tensors.values()), bool(paging))
        state = engine.handle.state_dict()
    return digests, state


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_by_zero(two_ranks, stage, tmp_path):
    unpaged = two_ranks.run(by_zero, stage, {})
    require_same(two_ranks.run(by_zero, stage, PAGED), unpaged)
    require_same(two_ranks.run(by_zero, stage, PAGED | {"page_dir": str(tmp_path)}), unpaged)


def zero_on_one_rank(rank: int) -> tuple[list[str], dict]:
    return by_zero(rank, 2, PAGED if rank == 1 else {})


def test_ranks_of_zero_may_differ(two_ranks):
    require_same(two_ranks.run(zero_on_one_rank), two_ranks.run(by_zero, 2, {}))


def one_rank_alone(rank: int, first: int) -> tuple[list[str], dict]:
    return train(rank, "int4+ef", PAGED if rank == first else {})


def test_ranks_may_differ(two_ranks):
    require_same(two_ranks.run(one_rank_alone, 0), two_ranks.run(train, "int4+ef", {}))


def leave_nothing(rank: int, page_dir: str | None) -> None:
    kind = "host" if page_dir is None else "file"
    gc.collect()  # removes the objects of other tests
    before = _C.arena_stats()[kind]
    model = DistributedDataParallel(nn.Linear(64, 64))
    handle = octavo.compress(model, "int4+ef", is_paged=True, page_dir=page_dir)
    for _ in range(2):
        model(torch.randn(4, 64)).square().mean().backward()
    kept = sum(tensor.nbytes for tensor in handle._compressor.state().tensors.values())
    assert _C.arena_stats()[kind]["live_bytes"] - before["live_bytes"] == 2 * kept > 0, "both generations"
    has_files = page_dir is not None and page_dir in Path("/proc/self/maps").read_text()
    assert has_files == (page_dir is not None)
    del model, handle
    gc.collect()
    after = _C.arena_stats()[kind]
    assert after["live_held_bytes"] == before["live_held_bytes"] and after["tensors"] == before["tensors"]


def test_both_generations_are_paged_and_go_with_the_handle(two_ranks, tmp_path):
    two_ranks.run(leave_nothing, None)
    two_ranks.run(leave_nothing, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def refuse_a_missing_directory(rank: int, page_dir: str) -> None:
    with pytest.raises(ValueError, match="missing"):
        make("int4+ef", dict(is_paged=True, page_dir=page_dir))


def test_directories_that_are_of_no_use_are_refused(two_ranks, tmp_path):
    two_ranks.run(refuse_a_missing_directory, str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"\[zero.initialize\] page_dir is for paged states"):
        octavo.zero.ZeroConfig(2, page_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"\[zero.initialize\] page_dir .*missing' is no directory: make it first"):
        octavo.zero.ZeroConfig(2, is_paged=True, page_dir=tmp_path / "missing")
    with pytest.raises(TypeError, match="expected page_dir as the path of a folder, got int"):
        octavo.zero.ZeroConfig(2, is_paged=True, page_dir=3)
    with pytest.raises(ValueError, match=r"\[compression\.compress\] page_dir is for paged states.*is_paged=True"):
        octavo.compress(nn.Linear(4, 4), "int4+ef", page_dir=str(tmp_path))
    for build in (OneBitAdamW, OneBitLamb):
        with pytest.raises(ValueError, match="page_dir is for paged states"):
            build(nn.Linear(4, 4).parameters(), warmup_steps=2, page_dir=str(tmp_path))


# ---- optimizers whose state decides what is sent

SCHEDULE = dict(var_freeze_step=3, local_step_scaler=2, local_step_clipper=2)
JOINED = {
    "OneBitAdamW": (OneBitAdamW, dict(warmup_steps=3)),
    "OneBitLamb": (OneBitLamb, dict(warmup_steps=3)),
    "ZeroOneAdam": (ZeroOneAdam, SCHEDULE),
}


def build(name: str, paging: Options) -> tuple[DistributedDataParallel, octavo.Handle, torch.optim.Optimizer]:
    kind, options = JOINED[name]
    model = DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    optimizer = kind(model.parameters(), lr=1e-2, **options, **paging)
    return model, octavo.compress(model, "sign+ef", optimizer=optimizer, **paging), optimizer


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def train_joined(rank: int, name: str, paging: Options) -> tuple[list[str], dict]:
    """Trains; everything is built anew after 5 steps, when the variance is frozen."""
    model, handle, optimizer = build(name, paging)
    digests = []
    for step in range(9):
        if step == 5:
            saved = model.module.state_dict(), handle.state_dict(), copy.deepcopy(optimizer.state_dict())
            model, handle, optimizer = build(name, paging)
            for one, state in zip((model.module, handle, optimizer), saved, strict=True):
                one.load_state_dict(state)
            require_paged(states_of(optimizer), bool(paging))
        step_once(model, optimizer, rank, step)
        digests.append(digest(model))
    require_paged(states_of(optimizer), bool(paging))
    require_paged(list(handle._compressor.state().tensors.values()), bool(paging))
    return digests, handle.state_dict()


@pytest.mark.parametrize("name", JOINED)
def test_joined_optimizers_have_the_bits_of_unpaged_ones(two_ranks, name):
    require_same(two_ranks.run(train_joined, name, PAGED), two_ranks.run(train_joined, name, {}))


@pytest.mark.parametrize("name", JOINED)
def test_copies_go_on_paged_and_nothing_stays(name, tmp_path):
    """In a single process, momenta are the optimizer's own state."""
    kind, options = JOINED[name]
    before = _C.arena_stats()["file"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)).to(torch.bfloat16)
    optimizer = kind(model.parameters(), lr=1e-2, **options, is_paged=True, page_dir=str(tmp_path))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 20, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step(model, optimizer)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    for one in (optimizer, twin_optimizer):
        require_paged(states_of(one), is_paged=True)
    for _ in range(3):
        step(model, optimizer)
        step(twin, twin_optimizer)
    assert digest(model) == digest(twin)
    require_paged(states_of(twin_optimizer), is_paged=True)
    live = _C.arena_stats()["file"]["live_bytes"] - before["live_bytes"]
    assert live == sum(state.nbytes for one in (optimizer, twin_optimizer) for state in states_of(one))
    del optimizer, twin_optimizer, one
    gc.collect()
    assert _C.arena_stats()["file"]["live_held_bytes"] == before["live_held_bytes"]
