# SPDX-License-Identifier: Apache-2.0
"""One run, as every rank executes it: open it, build, resume, step, report."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.console import Console
from transformers import LlamaForCausalLM

from octavo import durable_files
from octavo.outer import warning_of_few_rounds
from octavo.train import devices, errors, evaluate
from octavo.train.checkpoint import restore, run_folder, training_state
from octavo.train.checkpoint.identity import key_of
from octavo.train.checkpoint.writer import CheckpointWriter, point_to, step_folder
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data, load_data
from octavo.train.errors import warn
from octavo.train.launch.world import World, ranks
from octavo.train.model import seed_rank
from octavo.train.opening import Run, build_model, finished_summary, opened
from octavo.train.report import memory, plots, tables
from octavo.train.report.metrics import MetricsLog, Totals, read_metrics
from octavo.train.report.progress import make_display
from octavo.train.report.summary import check_replicas, summarize
from octavo.train.strategy.build import build_strategy
from octavo.train.trainer import Trainer

ANSWERS = 6


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
    model = build_model(config, world, data)
    with opened(config, world, data, model, precision, warn) as run:
        if run.disk.is_leader:
            _tidy(run)
        return _run(run, model, console)


def _run(run: Run, model: LlamaForCausalLM, console: Console | None) -> dict[str, Any]:
    finished = finished_summary(run, warn)
    if finished is not None:
        run.world.agree(lambda: _plot_if_missing(run) if run.world.is_main else None)
        if console:
            console.print(f"this run was finished after {run.config.steps} steps; --fresh starts over", soft_wrap=True)
            tables.print_summary(console, finished, run.out)
        return finished
    trainer = _start(run, model)
    _train(run, trainer, console)
    return _finish(run, trainer, console)


def _tidy(run: Run) -> None:
    """Removes what a killed run had not finished writing, and lets the links lead to the step that the run continues
    from, where somebody has removed them. What cannot be mended is no reason to end the job."""
    with suppress(OSError):
        run_folder.sweep(run.out)
    if not run.found:
        return
    try:
        point_to(run.checkpoints, run.found.step, run.disk.has_model)
    except OSError as error:
        trouble = error.strerror or error
        warn(f"the links in {run.checkpoints} do not lead to the checkpoint of step {run.found.step}: {trouble}")


def _start(run: Run, model: LlamaForCausalLM) -> Trainer:
    """Builds the strategy, in the state of the checkpoint where there is one."""
    world = run.world
    totals, optimizer_state = world.agree(lambda: _load_main_part(run, model))
    strategy = build_strategy(run.config, world, run.data, model, run.precision, resumed=run.found is not None)
    seed_rank(run.config.seed, world.rank)
    totals = world.from_main(totals)
    if run.found:
        lost = training_state.restore(strategy, world, optimizer_state, totals, run.checkpoints, run.found)
        if lost and world.is_main:
            warn(lost)
    if run.found and run.earlier_steps != run.config.steps and world.is_main:
        warn(
            f"this run of {run.earlier_steps} steps goes on to {run.config.steps}: from here on the learning rate and "
            f"its warm-up are those of {run.config.steps} steps, so that it ends otherwise than a run that had them "
            f"from the start; what an optimizer has frozen stays as it is"
        )
    totals.schedule(run.config.steps)
    world.agree(lambda: _claim_folder(run, strategy.precision) if run.disk.is_leader else None)
    if run.config.fresh:
        world.note_start_over()
    return Trainer(run.config, world, run.data, strategy, totals)


def _claim_folder(run: Run, precision: str) -> None:
    """Makes `--out` this run's folder, now that nothing can refuse the run any more. An earlier run in it is removed
    only by `--fresh`."""
    with errors.writing(what=str(run.out), where="train.job"):
        if run.config.fresh:
            run_folder.remove_run(run.out)
        elif run.earlier_steps != run.config.steps:  # its figures must not be taken for those of this run
            for name in (run_folder.SUMMARY, run_folder.PLOT):
                (run.out / name).unlink(missing_ok=True)
        run_folder.write_record(run.out, run.identity, {"precision": precision})


def _load_main_part(run: Run, model: LlamaForCausalLM) -> tuple[Totals, Any]:
    """Fills `model` on rank 0 and returns what else rank 0 keeps for all ranks. The strategy sends the weights to the
    others."""
    totals = run.totals()
    if run.step is None or not run.world.is_main:
        return totals, None
    training_state.load_weights(model, step_folder(run.checkpoints, run.step))
    return totals, restore.load_optimizer(run.checkpoints, run.step)


def _train(run: Run, trainer: Trainer, console: Console | None) -> None:
    """Makes the remaining steps, with their metrics, evaluations and checkpoints."""
    config, world, totals = run.config, run.world, trainer.totals
    log = world.agree(lambda: MetricsLog(run.out / run_folder.METRICS, totals.step) if world.is_main else None)
    if log and log.missing:
        warn(f"{run.out / run_folder.METRICS} has lost the lines of {log.missing} of the first {totals.step} steps")
    key = key_of(run.identity)
    writer = CheckpointWriter(world, run.disk, run.checkpoints, key, warn, totals.step)
    display = make_display(console, config.steps, totals.step)
    display.note(_opening(run, trainer))
    if config.outer and world.is_main and (trouble := warning_of_few_rounds(config.steps, config.outer)):
        warn(trouble)
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


def _save(run: Run, trainer: Trainer, writer: CheckpointWriter, log: MetricsLog | None) -> None:
    check_replicas(trainer)
    if log:
        log.sync()
    shared = training_state.shared_writer(trainer.strategy, run.data.tokenizer, trainer.totals)
    writer.save(trainer.totals.step, shared, training_state.rank_state(trainer.strategy, trainer.totals))


def _finish(run: Run, trainer: Trainer, console: Console | None) -> dict[str, Any]:
    summary = summarize(trainer, trainer.accuracy())
    run.world.agree(lambda: _write_figures(run, summary) if run.world.is_main else None)
    if run.world.is_main and summary["eval_loss"] is None:
        warn(f"the loss of the trained model is not finite: {errors.DIVERGED}; {run.config.divergence_advice}")
    with trainer.strategy.whole_model():
        if console:
            model, data = trainer.strategy.model, run.data
            tables.print_summary(console, summary, run.out)
            tables.print_answers(console, evaluate.sample_answers(model, data.tokenizer, data.corpus.held_out, ANSWERS))
    return summary


def _write_figures(run: Run, summary: dict[str, Any]) -> None:
    path = run.out / run_folder.SUMMARY
    with errors.writing(what=str(path), where="train.job"):
        durable_files.write_json(path, summary)
    _plot(run)  # afterwards: figures must not be lost because they cannot be drawn


def _plot_if_missing(run: Run) -> None:
    """Draws what a finished run was stopped from drawing after it had written its summary."""
    if not (run.out / run_folder.PLOT).exists() and (run.out / run_folder.METRICS).exists():
        _plot(run)


def _plot(run: Run) -> None:
    path, metrics = run.out / run_folder.PLOT, run.out / run_folder.METRICS
    if not metrics.is_file():
        warn(f"[train.job] {metrics} is missing: there is no plot of the loss")
        return
    records = read_metrics(metrics)
    with errors.writing(what=str(path), where="train.job"):
        plots.plot_loss(records, path)


def _opening(run: Run, trainer: Trainer) -> str:
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
