# SPDX-License-Identifier: Apache-2.0
"""`octavo train --zero`: the training of DDP with state, gradients and parameters shared out, in a whole job."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_runs import expect_exact_resume, run_until
from safetensors.torch import load_file
from train_runs import NANO, nano_config, read_curve
from transformers import AutoModelForCausalLM, LlamaConfig

from octavo.train.checkpoint import run_folder
from octavo.train.checkpoint.identity import identity_of
from octavo.train.checkpoint.writer import saved_steps
from octavo.train.config import TrainConfig
from octavo.train.data.dataset import load_corpus
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World

pytestmark = pytest.mark.timeout(180)


def whole_run(ranks: Any, config: TrainConfig, size: int = 2) -> dict[str, Any]:
    return ranks.run(run_until, config, size, config.steps, timeout_s=120)[0]


def curve_without_bytes(config: TrainConfig) -> list[dict[str, Any]]:
    """Returns the curve without bytes: in stage 3 the first pass of a process fetches parameters one by one, with more
    headers."""
    of_wire = ("wire_bytes", "wire_bytes_total")
    return [{k: v for k, v in record.items() if k not in of_wire} for record in read_curve(Path(config.out))]


def losses(config: TrainConfig) -> list[float]:
    return [record["loss"] for record in read_curve(Path(config.out))]


@pytest.fixture(scope="module")
def by_ddp(two_ranks, tmp_path_factory):
    config = nano_config(tmp_path_factory.mktemp("ddp"), plan="dense", grad_accum=2, clip_norm=0.5)
    return config, whole_run(two_ranks, config)


@pytest.fixture(scope="module")
def by_zero(two_ranks, by_ddp, tmp_path_factory):
    """Returns what runs the same job in a stage of ZeRO, once."""

    @cache
    def run(stage: int) -> tuple[TrainConfig, dict[str, Any]]:
        config = dataclasses.replace(by_ddp[0], zero=stage, out=str(tmp_path_factory.mktemp("zero") / "out"))
        return config, whole_run(two_ranks, config)

    return run


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_is_the_training_of_ddp(by_ddp, by_zero, stage):
    of_ddp, expected = by_ddp
    config, summary = by_zero(stage)
    assert losses(config) == pytest.approx(losses(of_ddp), rel=1e-5)
    for name in ("eval_loss", "final_loss"):
        assert summary[name] == pytest.approx(expected[name], rel=1e-5)
    assert summary["zero_stage"] == stage
    assert summary["parameters"] == expected["parameters"]
    assert summary["state_bytes_per_param"] == pytest.approx(expected["state_bytes_per_param"] / 2, rel=0.02)
    # In halves of an all-reduce: stages 2 and 3 send gradients in both micro-batches. Stage 3 also sends parameters in
    # all passes, except those that it uses again soon: backward begins with what the forward pass has ended with.
    sent = 2 * summary["wire_bytes_per_step"] / summary["dense_bytes_per_step"]
    least, most = {1: (1 + 1, 1 + 1), 2: (2 + 1, 2 + 1), 3: (2 + 2, 2 + 4)}[stage]
    assert 0.95 * least < sent < 1.05 * most


@pytest.mark.parametrize("stage", [2, 3])
def test_the_files_of_a_run_are_those_of_any(by_ddp, by_zero, stage):
    of_ddp, _ = by_ddp
    config, _ = by_zero(stage)
    ours, theirs = (Path(run.out) / "checkpoint" for run in (config, of_ddp))
    model = AutoModelForCausalLM.from_pretrained(ours)
    expected = load_file(theirs / "model.safetensors")
    assert load_file(ours / "model.safetensors").keys() == expected.keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)
    for folder in (Path(config.out), ours / "latest"):
        other = Path(of_ddp.out) / folder.relative_to(config.out)
        assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}


def test_an_exported_model_is_what_was_trained_and_keeps_its_cache(two_ranks, tmp_path):
    """A CONFIG.json may name another dtype, and generate() is slow without a cache."""
    (tmp_path / "bf16.json").write_text(json.dumps(NANO | {"dtype": "bfloat16"}))
    texts = []
    for stage in (0, 2):
        options = dict(plan="dense", optimizer="adamw", steps=2, model=str(tmp_path / "bf16.json"))
        config = nano_config(tmp_path, zero=stage, out=str(tmp_path / str(stage)), **options)
        whole_run(two_ranks, config)
        saved = Path(config.out) / "checkpoint"
        model = AutoModelForCausalLM.from_pretrained(saved)
        assert model.dtype == torch.float32
        assert model.config.use_cache and model.generation_config.use_cache
        texts.append([(saved / name).read_text() for name in ("config.json", "generation_config.json")])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (1, dict(optimizer="adamw8bit", gather="int8")),
        (2, dict(optimizer="paged-lion8bit", grad_accum=2)),
        (3, dict(optimizer="paged-adamw8bit", gather="int8", clip_norm=0.5)),
        (3, dict(optimizer="adamw", plan="sign+ef", precision="bf16")),
    ],
    ids=str,
)
def test_a_killed_run_resumes_exactly(two_ranks, tmp_path, stage, options):
    whole = nano_config(tmp_path, zero=stage, out=str(tmp_path / "whole"), **{"plan": "int4+ef", **options})
    broken = dataclasses.replace(whole, out=str(tmp_path / "broken"))
    summary = whole_run(two_ranks, whole)
    two_ranks.run(run_until, broken, 2, 5, timeout_s=120)
    assert saved_steps(Path(broken.out) / "checkpoint") == [4, 2]
    assert whole_run(two_ranks, broken)["replicas_sha256"] == summary["replicas_sha256"]
    assert curve_without_bytes(broken) == curve_without_bytes(whole)
    assert summary["gather"] == (whole.gather or "dense")


@pytest.mark.parametrize("stage", [1, 3])
def test_one_rank_resumes_exactly(world, tmp_path, stage):
    expect_exact_resume(world, tmp_path, 5, plan="int4+ef", zero=stage)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
def test_another_number_of_ranks_and_another_stage_go_on(world, two_ranks, three_ranks, tmp_path, optimizer):
    config = nano_config(tmp_path, plan="int4+ef", optimizer=optimizer, zero=1)
    two_ranks.run(run_until, config, 2, 4, timeout_s=120)
    three_ranks.run(run_until, dataclasses.replace(config, zero=3), 3, 6, timeout_s=120)
    run_job(dataclasses.replace(config, zero=2), world, None)
    curve = read_curve(Path(config.out))
    assert [record["step"] for record in curve] == list(range(1, 9))
    assert all(math.isfinite(record["loss"]) for record in curve)
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_a_step_with_a_nan_is_left_out(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", zero=2)
    summary = two_ranks.run(run_with_a_nan, config, timeout_s=120)[0]
    assert summary["skipped_steps"] == 1
    assert math.isfinite(summary["eval_loss"])


def run_with_a_nan(rank: int, config: TrainConfig) -> dict[str, Any]:
    """Makes rank 1's loss of step 3 a NaN."""
    from octavo.train.strategy import zero

    real, calls = zero.loss_of, []

    def loss_of(*arguments: Any) -> torch.Tensor:
        calls.append(0)
        return real(*arguments) * (float("nan") if rank == 1 and len(calls) == 3 else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero, "loss_of", loss_of)
        return run_job(config, World(rank, 2), None)


def test_a_disk_that_is_full_ends_the_job_on_all_ranks_with_a_sentence(two_ranks, tmp_path):
    config = nano_config(tmp_path, plan="dense", zero=3)
    for said in two_ranks.run(run_without_space, config, timeout_s=120):
        assert "[zero.export_safetensors] rank 0 cannot write" in said
        assert "No space left on device" in said


def run_without_space(rank: int, config: TrainConfig) -> str:
    from octavo.train.errors import JobError
    from octavo.zero import export

    def fail(tensor: torch.Tensor) -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_bytes_of", fail)
        with pytest.raises(JobError) as caught:
            run_job(config, World(rank, 2), None)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(zero=4), "--zero must be 0, 1, 2 or 3, not 4"),
        (dict(gather="int8"), "--gather int8 needs --zero, whose parameters it sends: --zero 1, 2 or 3"),
        (dict(zero=1, outer=4), "--zero 1 and rounds of local steps exclude each other"),
        (dict(zero=1, compare=("dense", "outer:4/dense")), "--zero 1 and rounds of local steps exclude each other"),
        (dict(zero=2, optimizer="muon"), "--optimizer muon steps whole parameters, or decides what is sent"),
        (dict(zero=2, optimizer="onebit-adamw", plan="sign+ef"), "use adamw, or one such as paged-adamw8bit or lion"),
        (dict(zero=3, optimizer="signum"), "--optimizer signum sends what each rank's own momentum makes"),
        (dict(zero=2, optimizer="lion"), "use lion32bit, which is Lion with averaged gradients, or adamw"),
        (dict(zero=2, optimizer="lion", plan="dense"), "use lion32bit, which is Lion with averaged gradients"),
        (
            dict(zero=3, plan="auto:int8"),
            "--plan auto:int8 measures the exchanges of replicas: with --zero name a plan",
        ),
        (dict(zero=3, compare=("dense", "auto")), "--plan auto measures the exchanges of replicas"),
    ],
)
def test_what_does_not_go_together_is_refused(change, words):
    with pytest.raises(ValueError, match=r"^\[train\.config\] --") as caught:
        TrainConfig(**change)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "plan",
    [
        *("powersgd:4", "powersgd:4+ef+warmup:10", "sketch:0.1", "sketch:0.1+fetchsgd", "delta+int4"),
        *("delta+topk:0.01", "dgc:0.01", "int4+ef21", "int4+econtrol", "lsh:int4", "lsh:int4+econtrol:0.1"),
    ],
)
def test_a_plan_that_gives_all_ranks_the_same_averages_is_refused_before_ranks_start(plan):
    words = f"^\\[train\\.config\\] --plan {re.escape(plan)} is for ranks that all get .* use int4\\+ef .* --zero 0$"
    with pytest.raises(ValueError, match=words):
        TrainConfig(zero=1, plan=plan)
    with pytest.raises(ValueError, match=words):
        TrainConfig(zero=3, gather="int8", compare=("dense", plan))
    TrainConfig(plan=plan)


def test_so_is_one_with_such_a_plan_for_some_parameters():
    for plan, part in (("int4+ef;*embed*=powersgd:4", "powersgd:4"), ("dgc:0.01;*embed*=dense+dgc", "dgc:0.01")):
        with pytest.raises(ValueError, match="--plan") as caught:
            TrainConfig(zero=2, plan=plan, optimizer="adamw")
        assert f"--plan {plan} has {part}, which is for ranks that all get" in str(caught.value)


@pytest.mark.parametrize(
    "plan",
    [
        *("dense", "bf16:lossless", "int4+ef", "int4+ef:8bit", "int4+loco", "sign+ef", "int4+down:int8+ef"),
        *("topk:0.01+ef+warmup:200", "topk:64/4096:sign+ef:0.95+hits", "threshold:10+ef", "randomk:0.1"),
        "int4+ef;*embed*=int8+ef",
    ],
)
def test_plans_of_values_are_not_refused(plan):
    for stage in (1, 2, 3):
        assert TrainConfig(zero=stage, plan=plan).resolved_plan == plan


def test_plan_and_optimizer_follow_from_it():
    config = TrainConfig(zero=2)
    assert (config.resolved_plan, config.optimizer_name) == ("int4+ef", "adamw")
    assert TrainConfig(zero=2, plan="sign+ef").optimizer_name == "adamw"
    assert TrainConfig(zero=3, gather="int8").to_args() == ["--zero", "3", "--gather", "int8"]


@pytest.mark.parametrize("optimizer", ["adamw", "adam8bit", "lion8bit", "lion32bit"])
@pytest.mark.parametrize("zero", [(0, 3), (2, 0)])
def test_a_run_goes_on_with_it_or_without(two_ranks, tmp_path, zero, optimizer):
    options = dict(plan="dense", optimizer=optimizer, batch_size=4)
    config = nano_config(tmp_path, zero=zero[0], **options)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    whole_run(two_ranks, whole)
    two_ranks.run(run_until, config, 2, 4, timeout_s=120)
    whole_run(two_ranks, dataclasses.replace(config, zero=zero[1]))
    rel = 2e-2 if optimizer.endswith("8bit") else 1e-5  # codes differ where blocks and parts differ
    assert losses(config) == pytest.approx(losses(whole), rel=rel)


@pytest.mark.parametrize("stages", [(0, 2), (2, 0)])
def test_a_run_goes_on_without_the_codec_that_only_it_has(two_ranks, tmp_path, stages):
    config = nano_config(tmp_path, plan="dense", optimizer="adamw")
    first, then = (dataclasses.replace(config, zero=stage, gather="int8" if stage else None) for stage in stages)
    two_ranks.run(run_until, first, 2, 4, timeout_s=120)
    whole_run(two_ranks, then)
    assert [record["step"] for record in read_curve(Path(config.out))] == list(range(1, 9))


def test_a_run_is_another_by_what_it_learns_alone(tmp_path):
    """Compiled graphs do not make a run another one. The codec of parameters does, between runs with ZeRO."""
    config = TrainConfig(plan="dense", optimizer="adamw", zero=2, gather="int8")
    corpus = load_corpus(None, seed=0)

    def claim(**changes: Any) -> None:
        run_folder.claim(tmp_path, identity_of(dataclasses.replace(config, **changes), corpus, {}), False)

    run_folder.write_record(tmp_path, identity_of(config, corpus, {}), {})
    for changes in ({}, dict(zero=3), dict(compile=True), dict(zero=0, gather=None)):
        claim(**changes)
    for changes in (dict(gather="int4"), dict(gather=None), dict(zero=0, gather=None, seed=1)):
        with pytest.raises(ValueError, match="belongs to another configuration"):
            claim(**changes)


def test_it_is_said_what_a_change_loses(two_ranks, three_ranks, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", optimizer="adamw")
    two_ranks.run(run_until, config, 2, 4, timeout_s=120)
    said = three_ranks.run(run_and_hear, dataclasses.replace(config, zero=1), timeout_s=120)
    assert ["what --plan owed to later steps is dropped" in text for text in said] == [True, False, False]
    assert math.isfinite(losses(config)[-1])


def run_and_hear(rank: int, config: TrainConfig) -> str:
    """Returns what a job has written to stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as heard:
        run_job(config, World(rank, 3), None)
    return heard.getvalue()


def run_without_room_for_the_config(rank: int, config: TrainConfig) -> str:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(JobError) as failure:
        patch.setattr(LlamaConfig, "save_pretrained", full)
        run_job(config, World(rank, 2), None)
    return str(failure.value)


def test_a_file_that_only_rank_0_cannot_write_ends_all_ranks_with_its_sentence(two_ranks, tmp_path):
    config = nano_config(tmp_path, zero=1)
    told = two_ranks.run(run_without_room_for_the_config, config, timeout_s=120)
    assert told[0] == told[1]
    assert "step 2" in told[0] and "cannot be written: No space left on device" in told[0]
