# SPDX-License-Identifier: Apache-2.0
"""ZeRO's waits for a rank that stays away end by the engine's own timeout, not by that of the process group."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
from torch import nn
from zero_runs import engine_of, error_of, inputs_of, net, train

import octavo
from octavo.zero.compiled import Contract, ZeroGraph

TIMEOUT_S, LATE_S = 2, 5


def come_late(rank: int, what: str, folder: str) -> tuple[float, str, str]:
    """Rank 1 calls the engine's method late. Returns how long it took, its error, and that of a save after it. The
    group's own timeout is half an hour."""
    group = torch.distributed.new_group()
    model = net()
    model.register_buffer("count", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 3, "timeout_s": TIMEOUT_S}, group=group)
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    if rank == 1:
        time.sleep(LATE_S)
    began = time.monotonic()
    said = error_of(lambda: getattr(engine, what)(folder))
    waited_s = time.monotonic() - began
    torch.distributed.barrier()
    return waited_s, said, error_of(lambda: engine.save_checkpoint(folder))


@pytest.mark.parametrize("what", ["save_checkpoint", "load_checkpoint", "export_safetensors"])
def test_a_rank_that_stays_away_is_named_in_time(two_ranks, tmp_path, what):
    early, late = two_ranks.run(come_late, what, str(tmp_path / "one"), timeout_s=60)
    assert 0.9 * TIMEOUT_S < early[0] < LATE_S and late[0] < LATE_S
    assert early[1] == (
        f"TimeoutError: [zero.{what}] rank 1 did not come within 2 s: call it on all 2 ranks of the group; the "
        f"engine must be rebuilt"
    )
    for _, said, after in (early, late):
        assert said.startswith("TimeoutError: [zero.")
        assert "[zero.save_checkpoint] an earlier error stopped this engine" in after


def lower_slowly(rank: int) -> tuple[float, str]:
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    config = {"zero_stage": 3, "compile": "aot_eager", "timeout_s": 60}  # ranks may compile at unlike speeds
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), config, group=torch.distributed.new_group()
    )

    def sleep(graph: ZeroGraph) -> None:
        if rank == 1:
            time.sleep(LATE_S)

    engine.register_compile_pass("sleep", sleep, Contract())
    engine.set_compile_schedule([(0, ["gather", "reduce"]), (1, ["gather", "reduce", "sleep"])])
    engine.backward(engine(torch.ones(4, 8)).sum())
    engine._peers._rendezvous._timeout = timedelta(seconds=TIMEOUT_S)
    began = time.monotonic()
    said = error_of(engine.step)
    return time.monotonic() - began, f"{said}, then {error_of(engine.step)}"


def test_a_rank_that_compiles_for_too_long_is_named_in_time(two_ranks):
    early, late = two_ranks.run(lower_slowly, timeout_s=60)
    assert early[0] < LATE_S and late[0] < 2 * LATE_S + TIMEOUT_S  # it has two graphs to compile
    for _, said in (early, late):
        assert said.startswith("TimeoutError: [zero.compiled] rank 1 did not come within 2 s: ")
        assert "then RuntimeError: [zero.step] an earlier error stopped this engine" in said


def export_where_a_gather_is_late(rank: int, path: str) -> tuple[float, str]:
    """Rank 1 comes, but late to the gather of the first parameter."""
    engine = octavo.initialize(
        model := nn.Linear(8, 8),
        torch.optim.SGD(model.parameters(), lr=0.1),
        {"zero_stage": 3, "timeout_s": TIMEOUT_S},
        group=torch.distributed.new_group(),
    )
    if rank == 1:
        bring_back = engine.bring_back
        engine.bring_back = lambda: (time.sleep(LATE_S), bring_back())
    began = time.monotonic()
    said = error_of(lambda: engine.export_safetensors(path))
    return time.monotonic() - began, f"{said}, then {error_of(lambda: engine.backward(inputs_of(rank)))}"


def test_a_late_gather_of_an_export_ends_in_time(two_ranks, tmp_path):
    early, late = two_ranks.run(export_where_a_gather_is_late, str(tmp_path / "one"), timeout_s=60)
    assert early[0] < LATE_S and late[0] < LATE_S + 2 * TIMEOUT_S
    assert early[1].startswith("TimeoutError: [zero.whole] rank 0: a peer did not answer within 2000 ms")
    assert late[1].startswith(("RuntimeError: [zero.", "TimeoutError: [zero.")), late[1]
    for _, said in (early, late):
        assert "then RuntimeError: [zero.backward] an earlier error stopped this engine" in said


class LostAfterAPass:
    """An engine of C++ that finds only when the next pass begins that a rank was lost after the last bucket."""

    def __init__(self, engine: object):
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def start_backward(self, update: bool) -> None:
        raise TimeoutError("[comm.shared_memory] rank 1 did not send within 2000 ms")


def lose_a_rank_after_a_pass(rank: int) -> tuple[str, str]:
    engine = engine_of(net(), 2, accumulation_steps=2)
    engine.backward(engine(inputs_of(rank)).sum())
    engine._engine = LostAfterAPass(engine._engine)
    return tuple(error_of(lambda: engine.backward(engine(inputs_of(rank)).sum())) for _ in range(2))


def test_a_rank_that_was_lost_after_a_pass_ends_the_engine_in_the_next(two_ranks):
    """Otherwise a second attempt would go on without the gradients of the micro-batches before."""
    for first, second in two_ranks.run(lose_a_rank_after_a_pass):
        assert "rank 1 did not send" in first and "[zero.backward] an earlier error stopped this engine" in second
