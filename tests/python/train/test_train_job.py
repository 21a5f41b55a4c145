# SPDX-License-Identifier: Apache-2.0
"""The job of a rank, in this process: what it writes and how it resumes. What it refuses to overwrite is in
`test_run_folder.py`."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from killed_runs import Stop, expect_exact_resume, stop_after_step
from rich.console import Console
from train_runs import nano_config, read_curve, run_as_rank, solo_world
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo import _C
from octavo.train import evaluate, job, trainer
from octavo.train.checkpoint import run_folder
from octavo.train.checkpoint.writer import saved_steps
from octavo.train.config import TrainConfig
from octavo.train.data.batches import IGNORE
from octavo.train.data.training_data import Data, load_data
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.optimizer_names import BETA2, OPTIMIZERS
from octavo.train.report.metrics import Totals, read_metrics
from octavo.train.strategy.build import build_replica, build_strategy
from octavo.train.strategy.ddp import DdpStrategy
from octavo.train.trainer import Trainer

pytestmark = pytest.mark.timeout(120)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


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
def world():
    with solo_world() as one:
        yield one


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
def test_a_resumed_run_has_the_curve_of_an_unbroken_one(world, golden, tmp_path, monkeypatch, last):
    config = nano_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, last)
        run_job(config, world, None)
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


def test_how_often_a_run_reports_does_not_make_it_another(world, golden, tmp_path, monkeypatch):
    config = nano_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, 3)
        run_job(config, world, None)
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


def test_a_run_without_a_checkpoint_starts_anew_with_more_steps(world, tmp_path, monkeypatch, capsys):
    config = nano_config(tmp_path, steps=4, checkpoint_every=4)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, 1)
        run_job(config, world, None)
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


def test_renamed_files_are_the_same_run(world, golden, tmp_path, monkeypatch):
    config = nano_config(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, 5)
        run_job(config, world, None)
    data, model = (Path(name).rename(tmp_path / f"renamed{Path(name).suffix}") for name in (config.data, config.model))
    summary = run_job(dataclasses.replace(config, data=str(data), model=str(model)), world, None)
    assert summary["replicas_sha256"] == golden[1]["replicas_sha256"]
    text = data.rename(tmp_path / "renamed.txt")
    with pytest.raises(JobError, match=r"data renamed\.jsonl \(.*\) there and renamed\.txt \(.*\) here"):
        run_job(dataclasses.replace(config, data=str(text), model=str(model)), world, None)


def test_a_step_with_a_non_finite_gradient_is_skipped_and_counted(world, tmp_path, monkeypatch):
    real = trainer.Trainer._backward

    def poisoned(self, step):
        loss = real(self, step)
        if step == 3:
            next(self.strategy.model.parameters()).grad.view(-1)[0] = float("nan")
        return loss

    monkeypatch.setattr(trainer.Trainer, "_backward", poisoned)
    summary = run_job(nano_config(tmp_path, plan="dense"), world, None)
    assert summary["skipped_steps"] == 1
    records = read_curve(tmp_path / "out")
    assert [record["step"] for record in records if record["skipped"]] == [3]
    assert all(record["loss"] is not None for record in records)


def test_a_run_that_never_has_a_finite_gradient_ends_with_a_sentence(world, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "MOST_SKIPPED", 3)
    monkeypatch.setattr(DdpStrategy, "has_finite_gradients", lambda _self: False)
    words = r"none of the last 3 steps, up to step 3, had a finite gradient: .*; try a smaller --lr or --clip-norm 1, "
    with pytest.raises(JobError, match=words):
        run_job(nano_config(tmp_path), world, None)


def test_a_step_too_large_for_float32_ends_with_a_sentence(world, tmp_path):
    config = nano_config(tmp_path, optimizer="muon", lr=3e38, weight_decay=0.9)
    with pytest.raises(
        JobError,
        match=r"^\[train\.trainer\] the optimizer's step 1 .*the run has diverged; try a smaller --lr, with --fresh",
    ):
        run_job(config, world, None)


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


# A record fills a row: some have a long question, some have a long answer.
UNEVEN = [
    dict(instruction=f"Say {i}." + " ab" * (40 if i % 2 else 0), output=str(i) + " ab" * (0 if i % 2 else 40))
    for i in range(80)
]


def gradient_of_a_step(config: TrainConfig, world: World) -> tuple[float, list[torch.Tensor], Data]:
    """Returns the loss and the averaged gradient of the first step, and its data."""
    data = load_data(config, world)
    strategy = build_strategy(config, world, data, build_replica(config, data), None, resumed=False)
    loss = world.mean(Trainer(config, world, data, strategy, Totals())._backward(1))
    return loss, [parameter.grad for parameter in strategy.model.parameters()], data


def random_numbers_of_a_rank(rank: int, config: TrainConfig) -> list[float]:
    run_as_rank(rank, config)
    return torch.rand(4).tolist()


def test_ranks_draw_random_numbers_of_their_own(two_ranks, tmp_path):
    """Otherwise all ranks would drop the same activations."""
    first, second = two_ranks.run(random_numbers_of_a_rank, nano_config(tmp_path, nproc=2, steps=1))
    assert first != second


def largest_difference_from_one_big_batch(rank: int, config: TrainConfig) -> tuple[float, float]:
    """Returns how far a step's loss and gradient are from those of one model over all of its rows; runs in each
    rank."""
    world = World(rank, config.nproc)
    loss, gradients, data = gradient_of_a_step(config, world)
    whole = build_replica(config, data)
    places = [(micro, peer) for micro in range(config.grad_accum) for peer in range(config.nproc)]
    batches = [data.train.batch(0, micro, peer, config.nproc) for micro, peer in places]
    counts = [int((batch["labels"][:, 1:] != IGNORE).sum()) for batch in batches]
    assert max(counts) > 2 * min(counts), "the test needs batches of different weight"
    losses = [whole(**batch).loss * count for batch, count in zip(batches, counts, strict=True)]
    mean = sum(losses) / sum(counts)
    mean.backward()
    pairs = zip(gradients, whole.parameters(), strict=True)
    return abs(loss - mean.item()), max((mine - one.grad).abs().max().item() for mine, one in pairs)


def test_a_step_weighs_every_answer_token_alike(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="dense", grad_accum=2, batch_size=1, seq_len=64, nproc=2)
    Path(config.data).write_text("".join(json.dumps(record) + "\n" for record in UNEVEN))
    for loss, gradient in two_ranks.run(largest_difference_from_one_big_batch, config):
        assert loss < 1e-5
        assert gradient < 1e-6


def test_the_gradient_is_clipped_whatever_the_plan(world, tmp_path):
    for plan in ("dense", "int4+ef"):
        out, free = tmp_path / plan, str(tmp_path / f"{plan}-free")
        clipped = run_job(nano_config(tmp_path, plan=plan, out=str(out), clip_norm=0.5), world, None)
        unclipped = run_job(nano_config(tmp_path, plan=plan, out=free), world, None)
        assert clipped["replicas_sha256"] != unclipped["replicas_sha256"]
        assert all(record["clip_norm"] == 0.5 and record["grad_norm"] > 0.5 for record in read_curve(out))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_resumes_exactly(world, tmp_path, monkeypatch, optimizer):
    options = dict(optimizer=optimizer, beta1=0.8, weight_decay=0.1)
    if optimizer in BETA2:
        options["beta2"] = 0.98
    expect_exact_resume(world, tmp_path, monkeypatch, 5, **options)


def test_ranks_of_zero_one_adam_have_one_model_wherever_it_is_saved(two_ranks, tmp_path):
    """Checkpoints after steps 21 and 35 and the evaluation after step 27 are inside of intervals without syncs."""
    config = nano_config(tmp_path, optimizer="zero-one-adam", steps=40, checkpoint_every=7, eval_every=9)
    first, second = two_ranks.run(run_as_rank, config, timeout_s=config.timeout_s)
    assert first["replicas_sha256"] == second["replicas_sha256"]
    sends = [record["step"] for record in read_curve(Path(config.out)) if record["wire_bytes"] > 0]
    assert 40 in sends and not {19, 21, 23, 27, 29, 35, 37} & set(sends)


def test_zero_one_adam_learns_the_same_however_often_it_is_looked_at(two_ranks, tmp_path):
    seldom = nano_config(tmp_path, optimizer="zero-one-adam", steps=40, checkpoint_every=40, eval_every=40)
    often = dataclasses.replace(seldom, checkpoint_every=7, eval_every=3, out=str(tmp_path / "often"))
    (expected, _), (summary, _) = (two_ranks.run(run_as_rank, run, timeout_s=60) for run in (seldom, often))
    for name in ("replicas_sha256", "eval_loss", "wire_bytes_per_step"):
        assert summary[name] == expected[name]
    losses, expected_losses = ([r["loss"] for r in read_curve(Path(run.out))] for run in (often, seldom))
    assert losses == expected_losses


def resumed_after(rank: int, config: TrainConfig, last: int) -> str:
    """Returns the parameters' digest at the end of a run that was stopped after step `last` and resumed; runs in each
    rank."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, last)
        run_as_rank(rank, config)
    return run_as_rank(rank, config)["replicas_sha256"]


def test_zero_one_adam_resumes_exactly_from_between_two_syncs(two_ranks, tmp_path):
    whole = nano_config(tmp_path, optimizer="zero-one-adam", steps=40, checkpoint_every=7)
    broken = dataclasses.replace(whole, out=str(tmp_path / "broken"))
    expected = two_ranks.run(run_as_rank, whole, timeout_s=60)[0]["replicas_sha256"]
    assert two_ranks.run(resumed_after, broken, 37, timeout_s=60) == [expected, expected]
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))


PAGED = [name for name in OPTIMIZERS if name.startswith("paged-")]


@pytest.mark.parametrize("optimizer", PAGED)
def test_a_resumed_run_is_still_paged(world, tmp_path, monkeypatch, optimizer):
    seen = []
    real = job._finish

    def finish(run, at_the_end, console):
        seen.append(at_the_end.strategy.optimizer.state)
        return real(run, at_the_end, console)

    monkeypatch.setattr(job, "_finish", finish)
    config = nano_config(tmp_path, optimizer=optimizer, plan="int4+ef")
    with monkeypatch.context() as patch, pytest.raises(Stop):
        stop_after_step(patch, 5)
        run_job(config, world, None)
    summary = run_job(config, world, None)
    (states,) = seen
    tensors = [tensor for state in states.values() for name, tensor in state.items() if name != "step"]
    assert tensors and all(_C.is_managed(tensor) for tensor in tensors)
    managed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert summary["peak_managed_bytes"] == managed
    steps = 4 * len(states)
    assert summary["state_bytes_per_param"] == pytest.approx((managed + steps) / summary["parameters"])


def test_states_of_few_bits_are_as_small_as_they_say(world, tmp_path):
    shares = {}
    for name in ("adamw", "adamw8bit", "adamw4bit"):
        shares[name] = run_job(
            nano_config(tmp_path, optimizer=name, plan="dense", out=str(tmp_path / name), model="tiny", steps=1),
            world,
            None,
        )["state_bytes_per_param"]
    assert shares["adamw"] == pytest.approx(8, abs=0.1)
    assert shares["adamw8bit"] == pytest.approx(2.03, abs=0.1)  # norms are smaller than min_8bit_size
    assert shares["adamw4bit"] == pytest.approx(1.06, abs=0.1)


def test_gradient_accumulation_sends_once_a_step(world, tmp_path):
    one = run_job(nano_config(tmp_path, plan="dense", out=str(tmp_path / "one")), world, None)
    two = run_job(nano_config(tmp_path, plan="dense", out=str(tmp_path / "two"), grad_accum=2), world, None)
    assert two["dense_bytes_per_step"] == one["dense_bytes_per_step"]
    assert two["tokens"] == 2 * one["tokens"]


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


def test_the_seed_is_also_that_of_what_the_plan_draws(world, tmp_path):
    config = nano_config(tmp_path, seed=5)
    data = load_data(config, world)
    strategy = build_strategy(config, world, data, build_replica(config, data), None, resumed=False)
    assert strategy.handle.state_dict()["seed"] == 5
