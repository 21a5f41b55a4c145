# SPDX-License-Identifier: Apache-2.0
"""`octavo train --outer`: local steps in a whole job, on one rank and on several."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Container
from pathlib import Path

import pytest
import torch
from killed_runs import killed_and_resumed, run_killed
from rich.console import Console
from train_runs import nano_config, read_curve, run_as_rank, write_uneven_rows
from typer.testing import CliRunner

from octavo.cli import app
from octavo.train import compare, trainer
from octavo.train.checkpoint import training_state
from octavo.train.checkpoint.training_state import rank_state
from octavo.train.compare import run_comparison
from octavo.train.config import TrainConfig
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.report.metrics import read_metrics
from octavo.train.strategy.outer import OuterStrategy

pytestmark = pytest.mark.timeout(120)

DELAYED = dict(outer=4, outer_delay=2, outer_fragments=2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "paged-adamw8bit", "lion8bit"])
def test_a_run_killed_in_a_round_resumes_exactly(two_ranks, tmp_path, optimizer):
    options = dict(plan="sign+ef", optimizer=optimizer, **DELAYED)
    whole, broken = (nano_config(tmp_path, out=str(tmp_path / name), **options) for name in ("whole", "broken"))
    for expected, resumed in two_ranks.run(killed_and_resumed, whole, broken, 7, timeout_s=90):
        assert resumed == expected
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))


def test_ranks_send_once_a_round_and_end_with_the_same_model(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="dense", outer=4)
    summaries = two_ranks.run(run_as_rank, config, timeout_s=90)
    assert summaries[0]["replicas_sha256"] == summaries[1]["replicas_sha256"]
    assert summaries[0]["compression_ratio"] == pytest.approx(4, rel=0.01)
    records = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert [record["step"] for record in records if record["wire_bytes"]] == [4, 8]


def test_the_loss_of_a_step_is_that_of_rank_0s_own_tokens(two_ranks, tmp_path):
    """Ranks have different numbers of tokens: the mean over the ranks would be wrong for rank 0."""
    config = nano_config(tmp_path, plan="int4+ef", outer=2, batch_size=1, seq_len=64, lr=1e-9)
    write_uneven_rows(Path(config.data))
    two_ranks.run(run_as_rank, config, timeout_s=90)
    losses = [record["loss"] for record in read_curve(Path(config.out))]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.05)  # the model stays untrained


def test_another_number_of_ranks_goes_on_from_the_anchor(world, two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", **DELAYED)
    run_killed(config, world, 5)
    summaries = two_ranks.run(run_as_rank, config, timeout_s=90)
    assert summaries[0]["replicas_sha256"] == summaries[1]["replicas_sha256"]
    assert summaries[0]["steps"] == 8


def test_a_step_with_a_nan_is_left_out_and_counts(world, tmp_path, monkeypatch):
    real = trainer.Trainer._backward

    def backward(self, step):
        loss = real(self, step)
        if step == 3:
            next(self.strategy.model.parameters()).grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(trainer.Trainer, "_backward", backward)
    config = nano_config(tmp_path, plan="int4+ef", outer=4)
    summary = run_job(config, world, None)
    assert summary["skipped_steps"] == 1
    assert torch.isfinite(torch.tensor(summary["eval_loss"]))


def poison(patch: pytest.MonkeyPatch, steps: Container[int]) -> None:
    """Gives this rank gradients that are not finite in some steps."""
    real = trainer.Trainer._backward

    def backward(self, step):
        loss = real(self, step)
        if step in steps:
            next(self.strategy.model.parameters()).grad.fill_(float("nan"))
        return loss

    patch.setattr(trainer.Trainer, "_backward", backward)


def as_an_older_version_saved(strategy, totals):
    return {name: value for name, value in rank_state(strategy, totals).items() if name != "skipped"}


def skipped_steps(rank: int, config: TrainConfig, last: int | None = None, *, is_older: bool = False) -> int:
    """Returns how many steps the summary says were skipped, of a run that is stopped after step `last` and resumed."""
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, [(1, 4), (2, 3, 6)][rank])
        if last is not None:
            with pytest.MonkeyPatch.context() as stopped:
                if is_older:
                    stopped.setattr(training_state, "rank_state", as_an_older_version_saved)
                run_killed(config, World(rank, config.nproc), last)
        return run_as_rank(rank, config)["skipped_steps"]


def test_the_skipped_steps_of_a_run_are_those_of_the_rank_with_most_also_where_it_is_resumed(two_ranks, tmp_path):
    whole, broken, older = (
        nano_config(tmp_path, plan="int4+ef", outer=4, out=str(tmp_path / name))
        for name in ("whole", "broken", "older")
    )
    assert two_ranks.run(skipped_steps, whole, timeout_s=90) == [3, 3]
    assert two_ranks.run(skipped_steps, broken, 5, timeout_s=90) == [3, 3]
    assert two_ranks.run(functools.partial(skipped_steps, is_older=True), older, 5, timeout_s=90) == [2, 2]  # rank 0's


def failures_of_a_resumed_run(rank: int, config: TrainConfig, last: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "MOST_SKIPPED", 6)
        poison(patch, [(), range(1, 9)][rank])
        run_killed(config, World(rank, config.nproc), last)
        with pytest.raises(JobError) as caught:
            run_as_rank(rank, config)
    return str(caught.value)


def test_a_resumed_rank_diverges_where_an_unbroken_one_does(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", outer=4)
    for said in two_ranks.run(failures_of_a_resumed_run, config, 5, timeout_s=90):
        assert "none of the last 6 steps, up to step 6, had a finite gradient" in said


def failure_of_a_diverging_rank(rank: int, config: TrainConfig) -> str:
    """Returns the error of a run in which only rank 1 no longer has finite gradients; runs in each rank."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(JobError) as caught:
        patch.setattr(trainer, "MOST_SKIPPED", 3)
        if rank == 1:
            patch.setattr(OuterStrategy, "has_finite_gradients", lambda _self: False)
        run_as_rank(rank, config)
    return str(caught.value)


def test_all_ranks_say_that_one_of_them_has_diverged(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", outer=2, eval_every=3, checkpoint_every=8)
    said = two_ranks.run(failure_of_a_diverging_rank, config, timeout_s=60)
    assert said[0] == said[1]
    assert "none of the last 3 steps, up to step 3, had a finite gradient: the run has diverged" in said[0]


def test_a_comparison_has_rounds_beside_plans(world, tmp_path, capsys):
    config = nano_config(tmp_path, steps=4, compare=("dense", "outer:2/sign+ef"))
    screen = io.StringIO()
    summaries = run_comparison(config, world, Console(file=screen, width=160))
    assert [(s["plan"], s["optimizer"], s["outer"]) for s in summaries.values()] == [
        ("dense", "adamw", 0),
        ("sign+ef", "adamw", 2),
    ]
    assert "outer:2/sign+ef" in screen.getvalue()
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == summaries
    assert "warning: 4 steps make 2 rounds of 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(outer=-1), r"^\[train.config\] --outer must be at least 0 steps, not -1$"),
        (dict(outer=4, outer_delay=-2), r"^\[train.config\] --outer-delay must be at least 0 steps, not -2$"),
        (dict(outer=4, outer_delay=4), "with --outer 4, --outer-delay must be below 4 .*, not 4 and 1"),
        (dict(outer=4, outer_fragments=0), "--outer-fragments must be at least 1"),
        (dict(outer=4, outer_momentum=1.0), "--outer-momentum must be at least 0 and below 1"),
        (dict(outer=4, outer_lr=0.0), "--outer-lr must be finite and above 0"),
        (dict(outer_delay=1), "--outer-delay needs --outer"),
        (dict(outer=4, optimizer="onebit-adamw"), "with --outer ranks step by themselves: use adamw or muon"),
        (dict(compare=("dense", "outer:x/sign+ef")), "must be outer:H/PLAN"),
        (dict(compare=("dense", "outer:4")), "must be outer:H/PLAN"),
        (dict(outer=4, outer_fragments=5), "and --outer-fragments at most 4, not 0 and 5"),
        (dict(compare=("dense", "outer:4:0:9/sign+ef")), "must have a delay below 4 and 1 to 4 fragments"),
        (dict(compare=("dense", "int4+ef"), outer=4), "name rounds as outer:4/PLAN"),
        (dict(outer=4, plan="sign-vote"), r"^\[outer\.Outer\] the plan sign-vote keeps no magnitudes"),
        (dict(compare=("dense", "outer:4/auto")), r"^\[outer\.Outer\] the plan auto measures the exchanges"),
    ],
)
def test_options_that_make_no_sense_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        TrainConfig(**change)


@pytest.mark.parametrize("plan", ["auto", "sign-vote", "dgc:0.01"])
def test_plans_that_make_no_rounds_are_refused_before_anything_is_trained(plan, tmp_path):
    for options in (["--outer", "4", "--plan", plan], ["--compare", f"dense,outer:4/{plan}"]):
        adamw = ["--optimizer", "adamw"]
        result = CliRunner().invoke(app, ["train", *options, *adamw, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2, result.output
        assert "[outer.Outer] the plan" in result.output
        assert not (tmp_path / "out").exists()


def test_the_figures_of_a_comparison_are_whole_where_names_are_long():
    summary = {
        **dict(model="tiny", data="tasks", steps=4, world_size=2, optimizer="adamw", eval_loss=4.0712, accuracy=0.125),
        **dict(wire_bytes_per_step=123_456_789, compression_ratio=1234.5, step_s=0.123),
    }
    file = io.StringIO()
    runs = {name: summary for name in ("dense", "outer:12:5:4/topk:64/4096:sign+down:int8+ef")}
    Console(file=file, width=80).print(compare._table(runs))
    for figure in ("4.0712", "+0.00%", "12.5%", "1234.5x", "123"):
        assert file.getvalue().count(figure) >= 2, file.getvalue()


def test_the_options_survive_the_command_line():
    config = TrainConfig(outer=20, outer_delay=3, outer_fragments=2, outer_lr=0.5, outer_momentum=0.3)
    assert config.to_args()[:2] == ["--outer", "20"]
    assert config.optimizer_name == "adamw"
    compared = TrainConfig(compare=("dense", "outer:40/sign+ef"), outer_lr=1.0, outer_delay=2)
    assert compared.for_plan("dense") == TrainConfig(plan="dense", out="out/dense")
    run = compared.for_plan("outer:40/sign+ef")
    assert (run.outer, run.outer_delay, run.outer_fragments, run.outer_lr, run.plan) == (40, 2, 1, 1.0, "sign+ef")
    assert compared.for_plan("outer:40:0/sign+ef").outer_delay == 0
    run = compared.for_plan("outer:40:5:4/topk:64/4096:sign+ef")
    assert (run.outer, run.outer_delay, run.outer_fragments, run.plan) == (40, 5, 4, "topk:64/4096:sign+ef")
