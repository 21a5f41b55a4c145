# SPDX-License-Identifier: Apache-2.0
"""`octavo train --compare`: several plans in one command."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from killed_runs import Stop, run_until, stop_after_step
from rich.console import Console
from train_runs import nano_config, read_curve

from octavo.train import trainer
from octavo.train.checkpoint import run_folder
from octavo.train.compare import run_comparison
from octavo.train.config import TrainConfig
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.strategy import build
from octavo.train.strategy.ddp import DdpStrategy


def test_a_comparison_runs_each_plan_and_draws_one_picture(world, tmp_path):
    config = nano_config(tmp_path, steps=4, compare=("dense", "sign+ef"))
    screen = io.StringIO()
    summaries = run_comparison(config, world, Console(file=screen, width=160))
    out = Path(config.out)
    assert [summary["optimizer"] for summary in summaries.values()] == ["adamw", "onebit-adamw"]
    assert json.loads((out / "compare.json").read_text()) == summaries
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {"dense", "sign+ef", "compare.json", "compare.png"}
    assert "sent per step" in screen.getvalue()
    headings = [line.split("┃")[4] for line in screen.getvalue().splitlines() if line.startswith("┃")]
    assert " ".join(headings).split() == ["change", "from", "dense"]


def test_a_finished_run_without_its_metrics_is_compared_and_left_out_of_the_picture(world, tmp_path, capsys):
    config = nano_config(tmp_path, steps=4, compare=("dense", "sign+ef"))
    before = run_comparison(config, world, None)
    out = Path(config.out)
    (out / "compare.json").unlink()
    (out / "compare.png").unlink()
    (out / "sign+ef" / "metrics.jsonl").unlink()
    assert run_comparison(config, world, None) == before
    assert json.loads((out / "compare.json").read_text()) == before
    assert (out / "compare.png").is_file()
    assert "metrics.jsonl is missing: the plot leaves out sign+ef" in capsys.readouterr().err


def test_a_comparison_goes_on_in_any_order_and_by_one_of_its_plans_alone(world, tmp_path):
    config = nano_config(tmp_path, steps=4, compare=("dense", "sign+ef"))
    summaries = run_comparison(config, world, None)
    assert run_comparison(dataclasses.replace(config, compare=("sign+ef", "dense")), world, None) == summaries
    for plan in config.compare:
        assert run_job(config.for_plan(plan), world, None) == summaries[plan]


def test_runs_of_another_setting_are_not_compared(world, tmp_path):
    config = nano_config(tmp_path, steps=2, optimizer="adamw", compare=("dense", "int4+ef"))
    run_comparison(config, world, None)
    longer = dataclasses.replace(config, zero=2, compare=(*config.compare, "int8+ef"))
    with pytest.raises(JobError, match=r"^\[train\.compare\] the other plans cannot be compared with what") as refused:
        run_comparison(longer, world, None)
    earlier = ", ".join(f"{config.out}/{plan} (--zero 0 there and 2 here)" for plan in config.compare)
    assert f"in {earlier}: remove the folders, or give the options" in str(refused.value)
    assert not (Path(config.out) / "int8+ef" / "metrics.jsonl").exists()  # refused before any step
    for plan in config.compare:
        shutil.rmtree(Path(config.out) / plan)
    assert {one["zero_stage"] for one in run_comparison(longer, world, None).values()} == {2}


def refusal_of_a_comparison(rank: int, config: TrainConfig) -> str:
    try:
        run_comparison(config, World(rank, 2), None)
    except JobError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("last", "tokens"), [(4, 256), (2, 384)])
def test_a_comparison_on_another_number_of_ranks_is_refused_before_its_first_step(
    world, two_ranks, tmp_path, last, tokens
):
    """Whether the earlier run was finished or stopped."""
    config = nano_config(tmp_path, steps=4, compare=("int8", "dense", "int4+ef"))
    run_until(0, config.for_plan("dense"), 1, last)
    said = two_ranks.run(refusal_of_a_comparison, config, timeout_s=60)
    assert said[0] == said[1] and f"in {config.out}/dense (tokens {tokens} there and 512 here): remove the f" in said[0]
    assert not list(Path(config.out).glob("int*/metrics.jsonl"))


def test_the_plans_of_a_comparison_have_the_precision_of_one_that_is_there(world, tmp_path, monkeypatch):
    config = nano_config(tmp_path, steps=2, compare=("dense", "int4+ef"))
    with monkeypatch.context() as patch:
        patch.setattr(build, "choose_precision", lambda *_: "bf16")
        run_job(config.for_plan("int4+ef"), world, None)
    assert {one["precision"] for one in run_comparison(config, world, None).values()} == {"bf16"}


def test_a_run_that_has_diverged_need_not_be_comparable(world, tmp_path):
    config = nano_config(tmp_path, steps=2, optimizer="adamw", compare=("dense", "int4+ef"))
    run_job(config.for_plan("dense"), world, None)
    path = Path(config.out) / "dense" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eval_loss": None}))
    summaries = run_comparison(dataclasses.replace(config, zero=2), world, None)
    assert "diverged" in summaries["dense"] and summaries["int4+ef"]["zero_stage"] == 2


def test_the_plans_of_a_comparison_have_the_precision_of_the_first(world, tmp_path, monkeypatch):
    chosen = iter(["fp32", "fp32", "bf16", "fp32"])  # two to try both plans, then two to train
    monkeypatch.setattr(build, "choose_precision", lambda *_: next(chosen))
    summaries = run_comparison(nano_config(tmp_path, steps=2, compare=("dense", "sign+ef")), world, None)
    assert [summary["precision"] for summary in summaries.values()] == ["bf16", "bf16"]


def test_a_comparison_that_makes_no_sense_is_refused_before_its_first_step(world, tmp_path):
    config = nano_config(tmp_path, steps=4, zero=2, compare=("int4+ef", "int4+ef;none.*=int8+ef"))
    with pytest.raises(JobError, match=r"the rule for none.+ fits no parameter"):
        run_comparison(config, world, None)
    assert {path.name for path in Path(config.out).rglob("*") if path.is_file()} <= {run_folder.LOCK}


def test_a_fresh_comparison_goes_on_in_the_next_attempt(world, tmp_path):
    attempt = World(0, 1, torch.distributed.HashStore())
    run_comparison(nano_config(tmp_path, steps=2, compare=("dense", "int8"), fresh=True), attempt, None)
    assert attempt.has_started_over()


def test_a_fresh_comparison_that_is_broken_off_has_no_older_runs(world, tmp_path, monkeypatch):
    config = nano_config(tmp_path, steps=4, compare=("dense", "int4+ef"))
    run_comparison(config, world, None)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, 1)
        run_comparison(dataclasses.replace(config, fresh=True), world, None)
    assert {path.name for path in (Path(config.out) / "int4+ef").iterdir()} == {run_folder.LOCK}


def test_a_run_that_goes_on_from_fewer_steps_is_compared_with_none_that_does_not(world, tmp_path):
    shorter = nano_config(tmp_path, steps=2, checkpoint_every=2, compare=("dense",))
    run_comparison(shorter, world, None)
    longer = dataclasses.replace(shorter, steps=4, compare=("dense", "int4+ef"))
    words = r"out/dense \(--steps 2, then 4 there and 4 here\): remove the folder, or give"
    with pytest.raises(JobError, match=words):
        run_comparison(longer, world, None)
    assert len(read_curve(Path(shorter.for_plan("dense").out))) == 2  # refused before any step
    assert not (Path(longer.out) / "int4+ef" / "metrics.jsonl").exists()
    fresh = run_comparison(dataclasses.replace(longer, fresh=True), world, None)
    assert [summary["schedules"] for summary in fresh.values()] == [[[0, 4]], [[0, 4]]]


def test_a_plan_whose_last_loss_is_not_finite_has_diverged(world, tmp_path, monkeypatch, capsys):
    config = nano_config(tmp_path, steps=2, compare=("dense", "int4+ef"))
    whole = trainer.Trainer.evaluate

    def evaluate(self: trainer.Trainer) -> float | None:
        whole(self)
        if self.config.plan == "dense":
            self.totals.eval_loss = None
        return self.totals.eval_loss

    monkeypatch.setattr(trainer.Trainer, "evaluate", evaluate)
    summaries = run_comparison(config, world, None)
    assert "its last loss is not finite" in summaries["dense"]["diverged"] and "diverged" not in summaries["int4+ef"]
    assert "the loss of the trained model is not finite: the run has diverged" in capsys.readouterr().err


def test_a_plan_by_which_training_diverges_is_compared_without(world, tmp_path, monkeypatch):
    config = nano_config(tmp_path, steps=4, compare=("dense", "int4+ef"))
    screen = io.StringIO()
    monkeypatch.setattr(trainer, "MOST_SKIPPED", 3)
    monkeypatch.setattr(DdpStrategy, "has_finite_gradients", lambda self: self.config.plan != "dense")
    summaries = run_comparison(config, world, Console(file=screen, width=160))
    assert "the run has diverged" in summaries["dense"]["diverged"]
    assert summaries["int4+ef"]["steps"] == 4
    assert json.loads((Path(config.out) / "compare.json").read_text()) == summaries
    assert re.search(r"│ dense +│ adamw +│ +diverged │", screen.getvalue())
    monkeypatch.setattr(DdpStrategy, "has_finite_gradients", lambda _self: False)
    with pytest.raises(JobError, match=r"with each of these plans the run has diverged"):
        run_comparison(dataclasses.replace(config, fresh=True), world, None)
