# SPDX-License-Identifier: Apache-2.0
"""One run, as every rank executes it: claim `--out`, build, resume, step, report."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import LlamaForCausalLM

from octavo import durable_files
from octavo.outer import warning_of_few_rounds
from octavo.train import devices, errors, evaluate
from octavo.train.checkpoint import restore, run_folder, training_state
from octavo.train.checkpoint.restore import Found
from octavo.train.checkpoint.shared_disk import Disk, find_disk
from octavo.train.checkpoint.writer import CheckpointWriter, point_to, step_folder
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data, load_data
from octavo.train.launch.world import World, ranks
from octavo.train.model import seed_rank
from octavo.train.report import memory, plots, tables
from octavo.train.report.metrics import MetricsLog, Totals, read_metrics
from octavo.train.report.progress import make_display
from octavo.train.report.summary import check_replicas, summarize
from octavo.train.strategy.build import build_replica, build_strategy
from octavo.train.trainer import Trainer

ANSWERS = 6


@dataclass
class _Run:
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


def run_job(
    config: TrainConfig,
    world: World,
    console: Console | None,
    *,
    data: Data | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Trains, or continues to train, and returns the summary (on every rank). `console` is None on ranks other than 0.

    `data`: the data of `config`, where they are loaded already. `precision`: the choice of another run, which counts
    where this run has not made one and its options leave it open. Raises JobError with one sentence, the same on all
    ranks; the last checkpoint stays good whatever happens.
    """
    memory.reset_peak()
    data = data or load_data(config, world)
    model = _build_model(config, world, data)
    with _locked(Path(config.out), world) as disk:
        run = _open(config, world, disk, data, model.config.to_diff_dict(), precision, _warn)
        if run.found and disk.is_leader:
            _mend_links(run.checkpoints, run.found.step, disk)
        return _run(run, model, console)


def try_job(config: TrainConfig, world: World, data: Data) -> list[list[int]]:
    """Raises JobError for what `run_job` would refuse before its first step. `--out` is left as it is. Returns the
    schedules of the learning rate that the run will have had at its end (`Totals.schedules`)."""
    model = _build_model(config, world, data)
    with _locked(Path(config.out), world) as disk:
        run = _open(config, world, disk, data, model.config.to_diff_dict(), None, warn=lambda _: None)
        build_strategy(config, world, data, model, None, resumed=False)
        totals = world.from_main(world.agree(lambda: _totals_of(run)))
    totals.schedule(config.steps)
    del model
    gc.collect()  # strategies are in reference cycles
    return totals.schedules


def _build_model(config: TrainConfig, world: World, data: Data) -> LlamaForCausalLM:
    """Returns the untrained model, the same bits on every rank. Raises JobError, also where a rank's CONFIG.json
    describes another model than rank 0's: the ranks would average gradients of different functions."""
    model = world.agree(lambda: build_replica(config, data))
    ours = run_folder.fingerprint_of(model.config.to_diff_dict())
    world.agree(lambda: _check_same_model(config.model, ours == world.from_main(ours), world.rank))
    return model


def _check_same_model(name: str, is_same: bool, rank: int) -> None:
    if not is_same:
        raise ValueError(
            f"[train.job] --model {name} describes another model on rank {rank} than on rank 0: give all ranks the "
            f"same file"
        )


def clear_job(config: TrainConfig, world: World) -> None:
    """Removes the earlier run in `--out`, which `try_job` has found to be one. Raises JobError."""
    out = Path(config.out)
    with _locked(out, world) as disk:
        world.agree(lambda: run_folder.remove_run(out) if disk.is_leader else None)


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


def _run(run: _Run, model: LlamaForCausalLM, console: Console | None) -> dict[str, Any]:
    finished = _finished_summary(run)
    if finished is not None:
        if console:
            console.print(f"this run was finished after {run.config.steps} steps; --fresh starts over", soft_wrap=True)
            tables.print_summary(console, finished, run.out)
        return finished
    trainer = _start(run, model)
    _train(run, trainer, console)
    return _finish(run, trainer, console)


def _open(
    config: TrainConfig,
    world: World,
    disk: Disk,
    data: Data,
    model: dict[str, Any],
    precision: str | None,
    warn: Callable[[str], None],
) -> _Run:
    identity, record = _claim(config, world, disk, data, model)
    folder, key = Path(config.out) / run_folder.CHECKPOINT, run_folder.key_of(identity)
    found = None if config.fresh else restore.newest_checkpoint(world, disk, folder, key, warn)
    precision = record["resolved"].get("precision", precision) if record else precision
    earlier_steps = record["identity"]["steps"] if record else config.steps
    return _Run(config, world, data, disk, identity, precision, found, earlier_steps)


def _mend_links(folder: Path, step: int, disk: Disk) -> None:
    """Lets the links lead to the step that the run continues from, where somebody has removed them. What cannot be
    mended is no reason to end the job."""
    try:
        point_to(folder, step, disk.has_model)
    except OSError as error:
        _warn(f"the links in {folder} do not lead to the checkpoint of step {step}: {error.strerror or error}")


def _claim(
    config: TrainConfig, world: World, disk: Disk, data: Data, model: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the identity of this run, and the record of the earlier run that it continues, if any."""
    identity = run_folder.identity_of(config, data.corpus, model)
    out = Path(config.out)
    record = world.agree(lambda: run_folder.claim(out, identity, config.fresh) if disk.is_leader else None)
    return identity, world.from_main(record)


def _finished_summary(run: _Run) -> dict[str, Any] | None:
    """Returns the summary of a run that has nothing left to do, else None. A run that was killed before it wrote its
    summary still has to write it, and one whose summary is damaged writes it again."""

    def read() -> dict[str, Any] | None:
        path = run.out / run_folder.SUMMARY
        done = run.world.is_main and run.step == run.config.steps and path.is_file()
        return _read_summary(path) if done else None

    return run.world.from_main(run.world.agree(read))


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if summary["steps"]:
            return summary
    except (ValueError, KeyError, TypeError):
        pass
    _warn(f"{path} is damaged, and is written again from the last checkpoint")
    return None


def _start(run: _Run, model: LlamaForCausalLM) -> Trainer:
    """Builds the strategy, in the state of the checkpoint where there is one."""
    world = run.world
    totals, optimizer_state = world.agree(lambda: _load_main_part(run, model))
    strategy = build_strategy(run.config, world, run.data, model, run.precision, resumed=run.found is not None)
    seed_rank(run.config.seed, world.rank)
    if run.found:
        lost = training_state.restore(strategy, world, optimizer_state, run.checkpoints, run.found)
        if lost and world.is_main:
            _warn(lost)
    totals = world.from_main(totals)
    if run.found and run.earlier_steps != run.config.steps and world.is_main:
        _warn(
            f"this run of {run.earlier_steps} steps goes on to {run.config.steps}: from here on the learning rate and "
            f"its warm-up are those of {run.config.steps} steps, so that it ends otherwise than a run that had them "
            f"from the start; what an optimizer has frozen stays as it is"
        )
    totals.schedule(run.config.steps)
    world.agree(lambda: _claim_folder(run, strategy.precision) if run.disk.is_leader else None)
    if run.config.fresh:
        world.note_start_over()
    return Trainer(run.config, world, run.data, strategy, totals)


def _claim_folder(run: _Run, precision: str) -> None:
    """Makes `--out` this run's folder, now that nothing can refuse the run any more. An earlier run in it is removed
    only by `--fresh`."""
    with errors.writing(what=str(run.out), where="train.job"):
        if run.config.fresh:
            run_folder.remove_run(run.out)
        elif run.earlier_steps != run.config.steps:  # its summary must not be taken for that of this run
            (run.out / run_folder.SUMMARY).unlink(missing_ok=True)
        run_folder.write_record(run.out, run.identity, {"precision": precision})


def _load_main_part(run: _Run, model: LlamaForCausalLM) -> tuple[Totals, Any]:
    """Fills `model` on rank 0 and returns what else rank 0 keeps for all ranks. The strategy sends the weights to the
    others."""
    totals = _totals_of(run)
    if run.step is None or not run.world.is_main:
        return totals, None
    training_state.load_weights(model, step_folder(run.checkpoints, run.step))
    return totals, restore.load_optimizer(run.checkpoints, run.step)


def _totals_of(run: _Run) -> Totals:
    """Returns the totals of the checkpoint, on rank 0; new ones elsewhere, and where there is no checkpoint."""
    if run.step is None or not run.world.is_main:
        return Totals()
    totals = Totals.from_dict(restore.load_trainer(run.checkpoints, run.step))
    totals.schedules = totals.schedules or [[0, run.earlier_steps]]  # a checkpoint that does not have them yet
    return totals


def _train(run: _Run, trainer: Trainer, console: Console | None) -> None:
    """Makes the remaining steps, with their metrics, evaluations and checkpoints."""
    config, world, totals = run.config, run.world, trainer.totals
    log = world.agree(lambda: MetricsLog(run.out / run_folder.METRICS, totals.step) if world.is_main else None)
    if log and log.missing:
        _warn(f"{run.out / run_folder.METRICS} has lost the lines of {log.missing} of the first {totals.step} steps")
    key = run_folder.key_of(run.identity)
    writer = CheckpointWriter(world, run.disk, run.checkpoints, key, _warn, totals.step)
    display = make_display(console, config.steps, totals.step)
    display.note(_opening(run, trainer))
    if config.outer and world.is_main and (trouble := warning_of_few_rounds(config.steps, config.outer)):
        _warn(trouble)
    try:
        while totals.step < config.steps:
            record = trainer.step()
            if trainer.is_evaluated(totals.step):
                record["eval_loss"] = trainer.evaluate()
            if log:
                log.append(record)
            display.update(record, totals)
            if trainer.is_saved(totals.step):
                _save(run, trainer, writer, log)
    finally:
        display.close()
        if log:
            log.close()


def _save(run: _Run, trainer: Trainer, writer: CheckpointWriter, log: MetricsLog | None) -> None:
    check_replicas(trainer)
    if log:
        log.sync()
    shared = training_state.shared_writer(trainer.strategy, run.data.tokenizer, trainer.totals)
    writer.save(trainer.totals.step, shared, training_state.rank_state(trainer.strategy))


def _finish(run: _Run, trainer: Trainer, console: Console | None) -> dict[str, Any]:
    summary = summarize(trainer, trainer.accuracy())
    run.world.agree(lambda: _write_figures(run.out, summary) if run.world.is_main else None)
    if run.world.is_main and summary["eval_loss"] is None:
        _warn(f"the loss of the trained model is not finite: {errors.DIVERGED}; try a smaller --lr or --clip-norm 1")
    with trainer.strategy.whole_model():
        if console:
            model, data = trainer.strategy.model, run.data
            tables.print_summary(console, summary, run.out)
            tables.print_answers(console, evaluate.sample_answers(model, data.tokenizer, data.corpus.held_out, ANSWERS))
    return summary


def _write_figures(out: Path, summary: dict[str, Any]) -> None:
    with errors.writing(what=str(out / run_folder.PLOT), where="train.job"):
        plots.plot_loss(read_metrics(out / run_folder.METRICS), out / run_folder.PLOT)
    with errors.writing(what=str(out / run_folder.SUMMARY), where="train.job"):
        durable_files.write_json(out / run_folder.SUMMARY, summary)


def _opening(run: _Run, trainer: Trainer) -> str:
    config, parameters = run.config, sum(p.numel() for p in trainer.strategy.model.parameters())
    where = devices.describe(trainer.strategy.device, config.device)
    rounds = f" every {config.outer} steps" if config.outer else ""
    shares = f", ZeRO-{config.zero}" if config.zero else ""
    begin = f"resuming after step {run.step}" if run.step else "starting"
    if run.found and run.found.world_size != run.world.size:
        begin += f", saved by {ranks(run.found.world_size)}"
    return (
        f"{begin}: {durable_files.printable(config.model)} with {parameters:,} parameters on {run.data.corpus.name}, "
        f"{ranks(run.world.size)} on {where}, {trainer.strategy.precision}, plan {config.resolved_plan}{rounds}, "
        f"{config.optimizer_name}{shares}"
    )


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
