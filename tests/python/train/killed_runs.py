# SPDX-License-Identifier: Apache-2.0
"""Runs of `octavo train` that are killed in this process, and go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from train_runs import nano_config, read_curve, run_as_rank

from octavo.train import trainer
from octavo.train.config import TrainConfig
from octavo.train.job import run_job


class Stop(BaseException):
    """Simulates SIGKILL: no code catches it."""


def stop_after_step(monkeypatch, last: int) -> None:
    """Lets a job make `last` steps; it dies when it begins another one."""
    real = trainer.Trainer.step

    def step(self):
        if self.totals.step == last:
            raise Stop
        return real(self)

    monkeypatch.setattr(trainer.Trainer, "step", step)


def expect_exact_resume(world, folder: Path, monkeypatch, last: int, **options) -> None:
    """Compares a run that was killed after step `last` with one that was not."""
    whole = nano_config(folder, out=str(folder / "whole"), **options)
    broken = nano_config(folder, out=str(folder / "broken"), **options)
    summary = run_job(whole, world, None)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, last)
        run_job(broken, world, None)
    assert run_job(broken, world, None)["replicas_sha256"] == summary["replicas_sha256"]
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))


def killed_and_resumed(rank: int, whole: TrainConfig, broken: TrainConfig, last: int) -> tuple[str, str]:
    """Returns the parameters' digests of a run that was not stopped, and of one that was stopped after step `last` and
    resumed."""
    expected = run_as_rank(rank, whole)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, last)
        run_as_rank(rank, broken)
    return expected["replicas_sha256"], run_as_rank(rank, broken)["replicas_sha256"]
