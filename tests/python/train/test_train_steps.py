# SPDX-License-Identifier: Apache-2.0
"""The steps of a job: which gradient they have, and what becomes of one that is not finite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train_runs import nano_config, read_curve, run_as_rank, write_uneven_rows

from octavo.train import trainer
from octavo.train.config import TrainConfig
from octavo.train.data.batches import IGNORE
from octavo.train.data.training_data import Data, load_data
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.report.metrics import Totals
from octavo.train.strategy.build import build_replica, build_strategy
from octavo.train.strategy.ddp import DdpStrategy
from octavo.train.trainer import Trainer

pytestmark = pytest.mark.timeout(120)


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
    write_uneven_rows(Path(config.data))
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


def test_gradient_accumulation_sends_once_a_step(world, tmp_path):
    one = run_job(nano_config(tmp_path, plan="dense", out=str(tmp_path / "one")), world, None)
    two = run_job(nano_config(tmp_path, plan="dense", out=str(tmp_path / "two"), grad_accum=2), world, None)
    assert two["dense_bytes_per_step"] == one["dense_bytes_per_step"]
    assert two["tokens"] == 2 * one["tokens"]


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


def test_the_seed_is_also_that_of_what_the_plan_draws(world, tmp_path):
    config = nano_config(tmp_path, seed=5)
    data = load_data(config, world)
    strategy = build_strategy(config, world, data, build_replica(config, data), None, resumed=False)
    assert strategy.handle.state_dict()["seed"] == 5
