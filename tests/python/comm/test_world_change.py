# SPDX-License-Identifier: Apache-2.0
"""A run that resumes with another number of ranks: its steps, its learning rates and its state continue."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from killed_runs import run_until
from train_runs import nano_config, read_curve, solo_world

import octavo
from octavo.train.checkpoint.writer import rank_file, step_folder
from octavo.train.config import TrainConfig
from octavo.train.schedule import learning_rate

pytestmark = pytest.mark.timeout(300)


def ranks_loaded_until(rank: int, config: TrainConfig, size: int, last: int) -> list[Any]:
    """Runs a job as one of `size` ranks until it has made step `last`. Returns the ranks whose states it was given."""
    given: list[Any] = []
    load = octavo.Handle.load_state_dict

    def record(handle: octavo.Handle, states: Any) -> None:
        given.append(states["rank"] if isinstance(states, dict) else [state["rank"] for state in states])
        load(handle, states)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(octavo.Handle, "load_state_dict", record)
        run_until(rank, config, size, last)
    return given


@pytest.mark.parametrize("plan", ["dense", "sign+ef", "sign-vote"])
def test_two_ranks_become_three_and_then_one(two_ranks, three_ranks, tmp_path, plan):
    config = nano_config(tmp_path, plan=plan)
    assert two_ranks.run(ranks_loaded_until, config, 2, 4) == [[], []]
    assert three_ranks.run(ranks_loaded_until, config, 3, 5) == [[[0, 1]]] * 3  # step 5 has no checkpoint
    assert three_ranks.run(ranks_loaded_until, config, 3, 6) == [[[0, 1]]] * 3
    assert three_ranks.run(ranks_loaded_until, config, 3, 7) == [[0], [1], [2]]
    with solo_world():
        assert ranks_loaded_until(0, config, 1, 8) == [[0, 1, 2]]
    curve = read_curve(Path(config.out))
    assert [record["step"] for record in curve] == list(range(1, 9))
    rates = [learning_rate(step, config.steps, config.lr_warmup_steps, config.resolved_lr) for step in range(1, 9)]
    assert [record["lr"] for record in curve] == rates
    assert all(math.isfinite(record["loss"]) for record in curve)
    assert (step_folder(Path(config.out) / "checkpoint", 8) / rank_file(0, 1)).exists()
