# SPDX-License-Identifier: Apache-2.0
"""How a run begins: `--out` is locked and claimed, and the newest checkpoint in it is found."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from octavo.train.checkpoint import restore, run_folder
from octavo.train.checkpoint.identity import fingerprint_of, identity_of, key_of
from octavo.train.checkpoint.restore import Found
from octavo.train.checkpoint.shared_disk import Disk, find_disk
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data
from octavo.train.launch.world import World
from octavo.train.report.metrics import Totals
from octavo.train.report.summary import conditions
from octavo.train.strategy.build import build_replica, build_strategy

Warn = Callable[[str], None]


@dataclass
class Run:
    """A job whose `--out` is claimed and whose checkpoint, if any, is found."""

    config: TrainConfig
    world: World
    data: Data
    disk: Disk
    identity: dict[str, Any]
    precision: str | None
    """The precision, if it is chosen already."""
    found: Found | None
    earlier_steps: int
    """The number of steps of the run that this one continues; its own number where there is none."""

    @property
    def step(self) -> int | None:
        """The step after which the run continues; None for a new run."""
        return self.found.step if self.found else None

    @property
    def out(self) -> Path:
        return Path(self.config.out)

    @property
    def checkpoints(self) -> Path:
        return self.out / run_folder.CHECKPOINT

    def totals(self) -> Totals:
        """Returns the totals of the checkpoint, on rank 0; new ones elsewhere, and where there is no checkpoint."""
        if self.step is None or not self.world.is_main:
            return Totals()
        totals = Totals.from_dict(restore.load_trainer(self.checkpoints, self.step))
        totals.schedules = totals.schedules or [[0, self.earlier_steps]]  # a checkpoint that does not have them yet
        return totals


def try_job(config: TrainConfig, world: World, data: Data) -> dict[str, Any]:
    """Raises JobError for what `run_job` would refuse before its first step. `--out` is left as it is, apart from the
    folder itself and its lock.

    Returns the `conditions` of the run as its summary will have them; of a finished run, the whole summary.
    """
    model = build_model(config, world, data)
    with opened(config, world, data, model, None, warn=lambda _: None) as run:
        build_strategy(config, world, data, model, None, resumed=False)
        finished = finished_summary(run, warn=lambda _: None)
        totals = world.from_main(world.agree(run.totals))
    del model
    gc.collect()  # strategies are in reference cycles
    if finished is not None:
        return {"schedules": [[0, config.steps]], **finished}  # a summary that does not have them yet
    expected = conditions(config, world, totals)
    return {**expected, "precision": run.precision or expected["precision"]}


def clear_job(config: TrainConfig, world: World) -> None:
    """Removes the earlier run in `--out`, which `try_job` has found to be one. Raises JobError."""
    out = Path(config.out)
    with _locked(out, world) as disk:
        world.agree(lambda: run_folder.remove_run(out) if disk.is_leader else None)


def build_model(config: TrainConfig, world: World, data: Data) -> LlamaForCausalLM:
    """Returns the untrained model, the same bits on every rank. Raises JobError, also where a rank's CONFIG.json
    describes another model than rank 0's: the ranks would average gradients of different functions."""
    model = world.agree(lambda: build_replica(config, data))
    ours = fingerprint_of(model.config.to_diff_dict())
    world.agree(lambda: _check_same_model(config.model, ours == world.from_main(ours), world.rank))
    return model


def _check_same_model(name: str, is_same: bool, rank: int) -> None:
    if not is_same:
        raise ValueError(
            f"[train.opening] --model {name} describes another model on rank {rank} than on rank 0: give all ranks the "
            f"same file"
        )


@contextmanager
def opened(
    config: TrainConfig, world: World, data: Data, model: LlamaForCausalLM, precision: str | None, warn: Warn
) -> Iterator[Run]:
    """Yields the run in `--out`, which is locked and claimed for it. `precision`: what counts where the run has not
    chosen one. `warn` takes a line for each checkpoint that is skipped. Raises JobError."""
    with _locked(Path(config.out), world) as disk:
        identity, record = _claim(config, world, disk, data, model.config.to_diff_dict())
        folder, key = Path(config.out) / run_folder.CHECKPOINT, key_of(identity)
        found = None if config.fresh else restore.newest_checkpoint(world, disk, folder, key, warn)
        precision = record["resolved"].get("precision", precision) if record else precision
        earlier_steps = record["identity"]["steps"] if record else config.steps
        yield Run(config, world, data, disk, identity, precision, found, earlier_steps)


@contextmanager
def _locked(out: Path, world: World) -> Iterator[Disk]:
    """Yields the disk that holds `out`. One rank per disk locks `out` against other runs."""
    disk = find_disk(world, out)
    lock = world.agree(lambda: run_folder.lock(out) if disk.is_leader else None)
    try:
        yield disk
    finally:
        if lock:
            lock.close()


def _claim(
    config: TrainConfig, world: World, disk: Disk, data: Data, model: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the identity of this run, and the record of the earlier run that it continues, if any."""
    identity = identity_of(config, data.corpus, model)
    out = Path(config.out)
    record = world.agree(lambda: run_folder.claim(out, identity, config.fresh) if disk.is_leader else None)
    return identity, world.from_main(record)


def finished_summary(run: Run, warn: Warn) -> dict[str, Any] | None:
    """Returns the summary of a run that has nothing left to do, else None. A run that was killed before it wrote its
    summary still has to write it, and one whose summary is damaged writes it again, as `warn` is told."""

    def read() -> dict[str, Any] | None:
        path = run.out / run_folder.SUMMARY
        done = run.world.is_main and run.step == run.config.steps and path.is_file()
        return _read_summary(path, warn) if done else None

    return run.world.from_main(run.world.agree(read))


def _read_summary(path: Path, warn: Warn) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if summary["steps"]:
            return summary
    except (ValueError, KeyError, TypeError):
        pass
    warn(f"{path} is damaged, and is written again from the last checkpoint")
    return None
