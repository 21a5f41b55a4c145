# SPDX-License-Identifier: Apache-2.0
"""ZeRO's waits for a rank that stays away end by the engine's own timeout, not by that of the process group."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
from patience import PATIENCE
from torch import nn
from turns import tell, wait_until
from zero_runs import engine_of, error_of, inputs_of, net, train

import octavo
from octavo.zero.compiled import Contract, ZeroGraph

TIMEOUT_S = PATIENCE


def come_late(rank: int, what: str, folder: str) -> tuple[float, str, str]:
    """Rank 1 calls the engine's method when rank 0 has given up. Returns how long the call took, its error, and that of
    a save after it. The group's own timeout is half an hour."""
    group = torch.distributed.new_group()
    model = net()
    model.register_buffer("count", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 3, "timeout_s": TIMEOUT_S}, group=group)
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    if rank == 1:
        wait_until("rank 0 has given up")
    began = time.monotonic()
    said = error_of(lambda: getattr(engine, what)(folder))
    waited_s = time.monotonic() - began
    if rank == 0:
        tell("rank 0 has given up")
    torch.distributed.barrier()
    return waited_s, said, error_of(lambda: engine.save_checkpoint(folder))


@pytest.mark.parametrize("what", ["save_checkpoint", "load_checkpoint", "export_safetensors"])
def test_a_rank_that_stays_away_is_named_in_time(two_ranks, tmp_path, what):
    early, late = two_ranks.run(come_late, what, str(tmp_path / "one"), timeout_s=60)
    assert early[0] > 0.9 * TIMEOUT_S
    assert early[1] == (
        f"TimeoutError: [zero.{what}] rank 1 did not come within {TIMEOUT_S:g} s: call it on all 2 ranks of the group; "
        f"the engine must be rebuilt"
    )
    for _, said, after in (early, late):
        assert said.startswith("TimeoutError: [zero.")
        assert "[zero.save_checkpoint] an earlier error stopped this engine" in after


def lower_slowly(rank: int) -> str:
    torch._dynamo.reset()
    model = nn.Linear(8, 8)
    config = {"zero_stage": 3, "compile": "aot_eager", "timeout_s": 60}  # ranks may compile at unlike speeds
    engine = octavo.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), config, group=torch.distributed.new_group()
    )

    def wait(graph: ZeroGraph) -> None:
        if rank == 1:
            wait_until("rank 0 has given up")

    engine.register_compile_pass("wait", wait, Contract())
    engine.set_compile_schedule([(0, ["gather", "reduce"]), (1, ["gather", "reduce", "wait"])])
    engine.backward(engine(torch.ones(4, 8)).sum())
    engine._peers._rendezvous._timeout = timedelta(seconds=TIMEOUT_S)
    said = error_of(engine.step)
    if rank == 0:
        tell("rank 0 has given up")
    return f"{said}, then {error_of(engine.step)}"


def test_a_rank_that_compiles_for_too_long_is_named_in_time(two_ranks):
    for said in two_ranks.run(lower_slowly, timeout_s=60):
        assert said.startswith(f"TimeoutError: [zero.compiled] rank 1 did not come within {TIMEOUT_S:g} s: ")
        assert "then RuntimeError: [zero.step] an earlier error stopped this engine" in said


def export_where_a_gather_is_late(rank: int, path: str) -> str:
    """Rank 1 comes, but late to the gather of the first parameter."""
    engine = octavo.initialize(
        model := nn.Linear(8, 8),
        torch.optim.SGD(model.parameters(), lr=0.1),
        {"zero_stage": 3, "timeout_s": TIMEOUT_S},
        group=torch.distributed.new_group(),
    )
    if rank == 1:
        bring_back = engine.bring_back
        engine.bring_back = lambda: (wait_until("rank 0 has given up"), bring_back())
    said = error_of(lambda: engine.export_safetensors(path))
    if rank == 0:
        tell("rank 0 has given up")
    return f"{said}, then {error_of(lambda: engine.backward(inputs_of(rank)))}"


def test_a_late_gather_of_an_export_ends_in_time(two_ranks, tmp_path):
    early, late = two_ranks.run(export_where_a_gather_is_late, str(tmp_path / "one"), timeout_s=60)
    assert early.startswith(f"TimeoutError: [zero.whole] rank 0: a peer did not answer within {1000 * TIMEOUT_S:g} ms")
    assert late.startswith(("RuntimeError: [zero.", "TimeoutError: [zero.")), late
    for said in (early, late):
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
