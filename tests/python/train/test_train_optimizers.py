# SPDX-License-Identifier: Apache-2.0
"""A whole job with each optimizer: how it resumes, what it sends and how large its state is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from killed_runs import expect_exact_resume, killed_and_resumed, run_killed
from train_runs import nano_config, read_curve, run_as_rank

from octavo import _C
from octavo.train import job
from octavo.train.job import run_job
from octavo.train.optimizer_kinds import KINDS, OPTIMIZERS

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_resumes_exactly(world, tmp_path, optimizer):
    options = dict(optimizer=optimizer, beta1=0.8, weight_decay=0.1)
    if KINDS[optimizer].beta2 is not None:
        options["beta2"] = 0.98
    expect_exact_resume(world, tmp_path, 5, **options)


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


def test_zero_one_adam_resumes_exactly_from_between_two_syncs(two_ranks, tmp_path):
    whole = nano_config(tmp_path, optimizer="zero-one-adam", steps=40, checkpoint_every=7)
    broken = dataclasses.replace(whole, out=str(tmp_path / "broken"))
    for expected, resumed in two_ranks.run(killed_and_resumed, whole, broken, 37, timeout_s=100):
        assert resumed == expected
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))


@pytest.mark.parametrize("optimizer", [name for name, kind in KINDS.items() if kind.is_paged])
def test_a_resumed_run_is_still_paged(world, tmp_path, monkeypatch, optimizer):
    seen = []
    real = job._finish

    def finish(run, at_the_end, console):
        seen.append(at_the_end.strategy.optimizer.state)
        return real(run, at_the_end, console)

    monkeypatch.setattr(job, "_finish", finish)
    config = nano_config(tmp_path, optimizer=optimizer, plan="int4+ef")
    run_killed(config, world, 5)
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
