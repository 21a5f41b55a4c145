# SPDX-License-Identifier: Apache-2.0
"""A run that resumes with another number of ranks: its steps, its learning rates and its state continue."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from train_runs import nano_config, read_curve, solo_world

import octavo
from octavo.train.checkpoint.writer import rank_file, step_folder
from octavo.train.config import TrainConfig
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.optimizer import learning_rate
from octavo.train.trainer import Trainer

pytestmark = pytest.mark.timeout(300)


class Stop(BaseException):
    """Simulates SIGKILL: no code catches it."""


def run_until(rank: int, config: TrainConfig, size: int, last: int) -> list[Any]:
    """Runs a job as one of `size` ranks until it has made step `last`. Returns the ranks whose states it was given."""
    given: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Stop):
        step, load = Trainer.step, octavo.Handle.load_state_dict

        def stop_after_last(trainer: Trainer) -> dict[str, Any]:
            if trainer.totals.step == last:
                raise Stop
            return step(trainer)

        def record(handle: octavo.Handle, states: Any) -> None:
            given.append(states["rank"] if isinstance(states, dict) else [state["rank"] for state in states])
            load(handle, states)

        patch.setattr(Trainer, "step", stop_after_last)
        patch.setattr(octavo.Handle, "load_state_dict", record)
        run_job(config, World(rank, size), None)
    return given


@pytest.mark.parametrize("plan", ["dense", "sign+ef", "sign-vote"])
def test_two_ranks_become_three_and_then_one(two_ranks, three_ranks, tmp_path, plan):
    config = nano_config(tmp_path, plan=plan)
    assert two_ranks.run(run_until, config, 2, 4) == [[], []]
    assert three_ranks.run(run_until, config, 3, 5) == [[[0, 1]]] * 3  # step 5 has no checkpoint
    assert three_ranks.run(run_until, config, 3, 6) == [[[0, 1]]] * 3
    assert three_ranks.run(run_until, config, 3, 7) == [[0], [1], [2]]
    with solo_world():
        assert run_until(0, config, 1, 8) == [[0, 1, 2]]
    curve = read_curve(Path(config.out))
    assert [record["step"] for record in curve] == list(range(1, 9))
    rates = [learning_rate(step, config.steps, config.lr_warmup_steps, config.resolved_lr) for step in range(1, 9)]
    assert [record["lr"] for record in curve] == rates
    assert all(math.isfinite(record["loss"]) for record in curve)
    assert (step_folder(Path(config.out) / "checkpoint", 8) / rank_file(0, 1)).exists()
