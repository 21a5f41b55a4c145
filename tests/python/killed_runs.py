# SPDX-License-Identifier: Apache-2.0
"""Runs of `octavo train` that are killed in this process, and go on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from train_runs import nano_config, read_curve, run_as_rank

from octavo.train.config import TrainConfig
from octavo.train.launch.world import World


class Stop(BaseException):
    """Simulates SIGKILL: no code catches it."""


def stop_after_step(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Lets a job make `last` steps; it dies when it begins another one."""
    from octavo.train import trainer  # imports transformers, which some users of this module do not need

    real = trainer.Trainer.step

    def step(self: trainer.Trainer) -> dict[str, Any]:
        if self.totals.step == last:
            raise Stop
        return real(self)

    monkeypatch.setattr(trainer.Trainer, "step", step)


def run_killed(config: TrainConfig, world: World, last: int) -> None:
    """Runs a job that dies after step `last`, before its end."""
    from octavo.train.job import run_job

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, last)
        run_job(config, world, None)


def run_until(rank: int, config: TrainConfig, size: int, last: int) -> dict[str, Any]:
    """Runs a job as one of `size` ranks until it has made step `last`. Returns its summary, which is empty where other
    steps would have followed."""
    from octavo.train.job import run_job

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Stop):
        stop_after_step(patch, last)
        return run_job(config, World(rank, size), None)
    return {}


def expect_exact_resume(world: World, folder: Path, last: int, **options: Any) -> None:
    """Compares a run that was killed after step `last` with one that was not."""
    from octavo.train.job import run_job

    whole = nano_config(folder, out=str(folder / "whole"), **options)
    broken = nano_config(folder, out=str(folder / "broken"), **options)
    summary = run_job(whole, world, None)
    run_killed(broken, world, last)
    assert run_job(broken, world, None)["replicas_sha256"] == summary["replicas_sha256"]
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))


def killed_and_resumed(rank: int, whole: TrainConfig, broken: TrainConfig, last: int) -> tuple[str, str]:
    """Returns the parameters' digests of a run that was not stopped, and of one that was stopped after step `last` and
    resumed."""
    expected = run_as_rank(rank, whole)
    run_killed(broken, World(rank, broken.nproc), last)
    return expected["replicas_sha256"], run_as_rank(rank, broken)["replicas_sha256"]
