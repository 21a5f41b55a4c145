# SPDX-License-Identifier: Apache-2.0
"""The job of a rank, in this process: what it writes and how it resumes. What it refuses to overwrite is in
`test_run_folder.py`, its steps are in `test_train_steps.py`, and its optimizers in `test_train_optimizers.py`."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from killed_runs import Stop, run_killed
from rich.console import Console
from train_runs import nano_config, raising, read_curve
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.train import evaluate, job
from octavo.train.checkpoint import run_folder
from octavo.train.checkpoint.writer import saved_steps
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.report.metrics import read_metrics
from octavo.train.strategy.ddp import DdpStrategy

pytestmark = pytest.mark.timeout(120)

SUMMARY = {
    "plan",
    "optimizer",
    "zero_stage",
    "compile",
    "device",
    "world_size",
    "parameters",
    "steps",
    "first_loss",
    "final_loss",
    "eval_loss",
    "tokens_per_s",
    "step_s",
    "wire_bytes_per_step",
    "dense_bytes_per_step",
    "compression_ratio",
    "peak_device_bytes",
    "peak_host_bytes",
    "state_bytes_per_param",
}
METRICS = {"step", "loss", "lr", "tokens_per_s", "wire_bytes", "step_s"}


@pytest.fixture(scope="module")
def golden(world, tmp_path_factory):
    """Returns a run that nothing disturbed: its configuration, its summary and what it printed."""
    config = nano_config(tmp_path_factory.mktemp("golden"))
    screen = io.StringIO()
    summary = run_job(config, world, Console(file=screen, width=120))
    return config, summary, screen.getvalue()


def test_a_run_writes_what_it_promises(golden):
    config, summary, screen = golden
    out = Path(config.out)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert set(summary) >= SUMMARY
    assert summary["steps"] == 8
    assert summary["optimizer"] == "onebit-adamw"
    assert summary["state_bytes_per_param"] == pytest.approx(8, abs=4.1)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    records = read_metrics(out / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 9))
    assert all(set(record) >= METRICS for record in records)
    assert [record["step"] for record in records if "eval_loss" in record] == [4, 8]
    assert records[-1]["eval_loss"] == summary["eval_loss"]
    options = dict(lr=3e-3, beta1=0.5, beta2=0.999, weight_decay=0.01, clip_norm=None)
    assert {name: summary[name] for name in options} == options
    del options["lr"]  # metrics.jsonl has the learning rate of each step
    assert all({name: record[name] for name in options} == options for record in records)
    for words in ("starting: ", "1 rank on cpu", "step 8/8", "eval loss", "answers to held-out questions"):
        assert words in screen


def test_transformers_opens_the_checkpoint(golden):
    out = Path(golden[0].out)
    for folder in (out / "checkpoint", out / "checkpoint" / "step-000008"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert model.num_parameters() == golden[1]["parameters"]
        tokens = tokenizer("Add", return_tensors="pt")
        assert torch.isfinite(model(input_ids=tokens["input_ids"]).logits).all()


def test_the_same_command_on_a_finished_run_shows_its_summary(world, golden):
    config, summary, _ = golden
    screen = io.StringIO()
    before = read_curve(Path(config.out))
    assert run_job(config, world, Console(file=screen, width=120)) == summary
    assert "this run was finished after 8 steps" in screen.getvalue()
    assert read_curve(Path(config.out)) == before


def test_links_that_somebody_removed_lead_to_the_checkpoint_again(world, golden, tmp_path, capsys):
    config = nano_config(tmp_path)
    shutil.copytree(golden[0].out, config.out, symlinks=True)
    checkpoints = Path(config.out) / run_folder.CHECKPOINT
    for name in ("latest", "config.json"):
        (checkpoints / name).unlink()
    run_job(config, world, None)
    assert (checkpoints / "latest").readlink() == Path("step-000008")
    assert json.loads((checkpoints / "config.json").read_text())["model_type"] == "llama"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damaged", ["{half", "[]", "{}"])
def test_a_damaged_summary_is_written_again(world, golden, tmp_path, capsys, damaged):
    config = nano_config(tmp_path)
    shutil.copytree(golden[0].out, config.out)
    path = Path(config.out) / run_folder.SUMMARY
    path.write_text(damaged)
    assert run_job(config, world, None)["eval_loss"] == golden[1]["eval_loss"]
    assert capsys.readouterr().err == f"warning: {path} is damaged, and is written again from the last checkpoint\n"
    assert json.loads(path.read_text())["replicas_sha256"] == golden[1]["replicas_sha256"]


@pytest.mark.parametrize("last", [0, 1, 2, 5, 7])
def test_a_resumed_run_has_the_curve_of_an_unbroken_one(world, golden, tmp_path, last):
    config = nano_config(tmp_path)
    run_killed(config, world, last)
    summary = run_job(config, world, None)
    assert read_curve(Path(config.out)) == read_curve(Path(golden[0].out))
    assert summary["replicas_sha256"] == golden[1]["replicas_sha256"]
    assert summary["accuracy"] == golden[1]["accuracy"]


def test_a_run_that_died_before_its_summary_writes_it_when_asked_again(world, golden, tmp_path, monkeypatch):
    config = nano_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(job, "_finish", raising(Stop()))
        run_job(config, world, None)
    assert not (Path(config.out) / "summary.json").exists()
    assert run_job(config, world, None)["eval_loss"] == golden[1]["eval_loss"]


def test_how_often_a_run_reports_does_not_make_it_another(world, golden, tmp_path):
    config = nano_config(tmp_path)
    run_killed(config, world, 3)
    run_job(dataclasses.replace(config, checkpoint_every=3, eval_every=1), world, None)
    losses = [record["loss"] for record in read_curve(Path(config.out))]
    assert losses == [record["loss"] for record in read_curve(Path(golden[0].out))]


def test_an_out_of_another_configuration_is_refused_and_left_alone(world, golden):
    config = golden[0]
    before = read_curve(Path(config.out))
    for change, words in (
        (dict(steps=4), "steps 8 there and 4 here"),
        (dict(beta1=0.9), "beta1 0.5 there and 0.9 here"),
        (dict(beta2=0.9), "beta2 0.999 there and 0.9 here"),
        (dict(clip_norm=1.0), "clip_norm None there and 1.0 here"),
        (
            dict(plan="dense"),
            "optimizer onebit-adamw there and adamw here, plan sign+ef there and dense here",
        ),
    ):
        with pytest.raises(JobError, match="belongs to another configuration") as caught:
            run_job(dataclasses.replace(config, **change), world, None)
        assert words in str(caught.value)
    assert read_curve(Path(config.out)) == before
    assert saved_steps(Path(config.out) / "checkpoint") == [8, 6]


def test_a_run_without_a_checkpoint_starts_anew_with_more_steps(world, tmp_path, capsys):
    config = nano_config(tmp_path, steps=4, checkpoint_every=4)
    run_killed(config, world, 1)
    summary = run_job(dataclasses.replace(config, steps=6), world, None)
    assert summary["steps"] == 6 and summary["schedules"] == [[0, 6]]
    assert "goes on" not in capsys.readouterr().err


def test_a_summary_that_cannot_be_written_ends_in_a_sentence(world, tmp_path):
    config = nano_config(tmp_path, steps=2)
    (Path(config.out) / "summary.json").mkdir(parents=True)
    with pytest.raises((JobError, OSError), match=r"\[train.*summary\.json"):
        run_job(config, world, None)


def test_a_plot_that_cannot_be_drawn_costs_no_figures(world, tmp_path, monkeypatch):
    config = nano_config(tmp_path, steps=2)
    with monkeypatch.context() as patch, pytest.raises(JobError, match=r"loss\.png cannot be written: No space left"):
        patch.setattr(job.plots, "plot_loss", raising(OSError(28, "No space left on device")))
        run_job(config, world, None)
    assert json.loads((Path(config.out) / "summary.json").read_text())["steps"] == 2
    assert not (Path(config.out) / "loss.png").exists()
    run_job(config, world, None)  # as the sentence says, the same command continues
    assert (Path(config.out) / "loss.png").exists()


def test_a_run_whose_metrics_are_gone_has_figures_and_no_plot(world, golden, tmp_path, capsys):
    out = tmp_path / "without"
    shutil.copytree(golden[0].out, out, symlinks=True)
    for name in ("summary.json", "loss.png"):
        (out / name).unlink()
    config = dataclasses.replace(golden[0], out=str(out))
    with pytest.MonkeyPatch.context() as patch:  # somebody removes them while the run is under way
        whole = job.summarize
        patch.setattr(job, "summarize", lambda *them: (out / "metrics.jsonl").unlink() or whole(*them))
        run_job(config, world, None)
    assert "[train.job] " in (said := capsys.readouterr().err) and "metrics.jsonl is missing: there is no plot" in said
    assert (out / "summary.json").exists() and not (out / "loss.png").exists()


def test_a_finished_run_goes_on_to_more_steps(world, golden, tmp_path, capsys):
    out = tmp_path / "longer"
    shutil.copytree(golden[0].out, out, symlinks=True)
    config = dataclasses.replace(golden[0], out=str(out), steps=10)
    summary = run_job(config, world, None)
    assert "this run of 8 steps goes on to 10" in capsys.readouterr().err
    assert summary["steps"] == 10 and summary["schedules"] == [[0, 8], [8, 10]]
    losses = [record["loss"] for record in read_curve(out)]
    assert losses[:8] == [record["loss"] for record in read_curve(Path(golden[0].out))] and len(losses) == 10
    assert run_job(config, world, None) == summary  # the run is already finished
    with pytest.raises(JobError, match="steps 10 there and 8 here"):
        run_job(dataclasses.replace(config, steps=8), world, None)


def test_other_data_under_the_same_name_are_another_configuration(world, golden, tmp_path):
    config = nano_config(tmp_path, out=golden[0].out)
    Path(config.data).write_text(Path(config.data).read_text().replace("Add", "Sum"))
    with pytest.raises(JobError, match=r"data sums\.jsonl \(.*\) there and sums\.jsonl \(.*\) here"):
        run_job(config, world, None)


def test_names_need_not_be_utf_8(world, tmp_path):
    config = nano_config(tmp_path, steps=1)
    data, model = (
        Path(name).rename(tmp_path / (os.fsdecode(b"caf\xe9") + Path(name).suffix))
        for name in (config.data, config.model)
    )
    config = dataclasses.replace(config, data=str(data), model=str(model))
    assert run_job(config, world, None)["data"] == "caf\ufffd.jsonl"
    assert run_job(config, world, None)["steps"] == 1  # the record is read again


def test_renamed_files_are_the_same_run(world, golden, tmp_path):
    config = nano_config(tmp_path)
    run_killed(config, world, 5)
    data, model = (Path(name).rename(tmp_path / f"renamed{Path(name).suffix}") for name in (config.data, config.model))
    summary = run_job(dataclasses.replace(config, data=str(data), model=str(model)), world, None)
    assert summary["replicas_sha256"] == golden[1]["replicas_sha256"]
    text = data.rename(tmp_path / "renamed.txt")
    with pytest.raises(JobError, match=r"data renamed\.jsonl \(.*\) there and renamed\.txt \(.*\) here"):
        run_job(dataclasses.replace(config, data=str(text), model=str(model)), world, None)


def no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_figures_that_are_not_finite_are_null(world, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "summed_loss", lambda *_: (float("nan"), 1))
    monkeypatch.setattr(DdpStrategy, "update", lambda _self: float("inf"))
    screen = io.StringIO()
    config = nano_config(tmp_path, plan="int4+ef", steps=2, clip_norm=1.0)
    assert run_job(config, world, Console(file=screen, width=160))["eval_loss"] is None
    out = Path(config.out)
    for path in out.glob("*.json*"):
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text, parse_constant=no_json)
    assert [(r["eval_loss"], r["grad_norm"]) for r in read_curve(out) if "eval_loss" in r] == [(None, None)]
    assert re.search(r"│ eval loss +│ - ", screen.getvalue())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(data="/no/such/file.json"), "no such file"),
        (dict(model="/no/such/config.json"), "config.json cannot be read: No such file"),
        (dict(seq_len=128), "is 64; it must be at least --seq-len, 128"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_checkpoint(world, tmp_path, change, words):
    config = nano_config(tmp_path, **change)
    with pytest.raises(JobError) as caught:
        run_job(config, world, None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.name for path in Path(config.out).glob("*")} <= {run_folder.LOCK}
