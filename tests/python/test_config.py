# SPDX-License-Identifier: Apache-2.0
"""The options of a run: what is refused, in which words, and what follows from what."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.train.config import TrainConfig, check_local_ranks, parse_compare
from octavo.train.optimizer import learning_rate

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(steps=0), "--steps of at least 1, got 0"),
        (dict(nproc=-1), "--nproc of at least 1, got -1"),
        (dict(batch_size=0), "--batch-size of at least 1"),
        (dict(grad_accum=0), "--grad-accum of at least 1"),
        (dict(eval_every=0), "--eval-every of at least 1"),
        (dict(checkpoint_every=0), "--checkpoint-every of at least 1"),
        (dict(seq_len=4), "--seq-len of at least 8"),
        (dict(seed=-1), "--seed between"),
        (dict(lr=0.0), "--lr above 0"),
        (dict(lr=float("nan")), "--lr above 0, got nan"),
        (dict(weight_decay=-0.1), "--weight-decay of at least 0"),
        (dict(timeout_s=0.0), "--timeout-s above 0"),
        (dict(port=70000), "--port between 1 and 65535"),
        (dict(optimizer="sgd"), "--optimizer auto, adamw or onebit-adamw, got 'sgd'"),
        (dict(model="huge"), "got 'huge'"),
        (dict(device="tpu"), "got 'tpu'"),
        (dict(precision="fp64"), "got 'fp64'"),
        (dict(plan=""), "a --plan"),
        (dict(plan="int4", compare=("dense",)), "--plan or --compare"),
        (dict(out=""), "a directory for --out"),
        (dict(zero=1), "--zero 0, the only stage"),
        (dict(zero=4), "--zero 0, 1, 2 or 3, got 4"),
        (dict(compile=True), "no --compile"),
        (dict(device="cuda"), "--device auto, cpu or sycl"),
        (dict(optimizer="onebit-adamw", plan="dense"), "onebit-adamw only with plan sign or sign+ef"),
        (dict(optimizer="onebit-adamw", compare=("sign", "dense")), "got plan 'dense'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(change, words):
    with pytest.raises(ValueError, match=r"^\[train\.config\] expected ") as caught:
        TrainConfig(**change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_optimizer_follows_from_the_plan():
    assert TrainConfig(plan="sign+ef").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign:1024+ef").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign-vote").optimizer_name == "adamw"
    assert TrainConfig(plan="int4+ef").optimizer_name == "adamw"
    assert TrainConfig(plan="sign+ef", optimizer="adamw").optimizer_name == "adamw"


def test_one_bit_warm_up_is_15_percent_of_the_steps():
    assert TrainConfig(steps=400).onebit_warmup_steps == 60
    assert TrainConfig(steps=1).onebit_warmup_steps == 1
    assert TrainConfig(steps=400, plan="dense").onebit_warmup_steps == 0


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().steps = 1


def test_to_args_names_only_what_differs_from_the_defaults():
    assert TrainConfig().to_args() == []
    config = TrainConfig(data="a b.json", steps=3, fresh=True, compare=("dense", "sign"), grad_accum=2)
    expected = ["--steps", "3", "--grad-accum", "2", "--fresh", "--compare", "dense,sign"]
    assert config.to_args() == ["--data", "a b.json", *expected]


def test_a_leg_of_a_comparison_lives_in_a_folder_of_its_own():
    leg = TrainConfig(out="x", compare=("dense", "topk:0.01")).for_plan("topk:0.01")
    assert (leg.plan, leg.compare, leg.out) == ("topk:0.01", (), "x/topk-0.01")


def test_compare_wants_different_plans():
    assert parse_compare(None) == ()
    assert parse_compare("dense, sign+ef") == ("dense", "sign+ef")
    for text in ("", "dense,", "dense,dense"):
        with pytest.raises(ValueError, match="--compare"):
            parse_compare(text)


def test_more_ranks_than_make_sense_are_refused():
    check_local_ranks(8, cores=2)
    with pytest.raises(ValueError, match=r"--nproc of at most 8 .*, got 9"):
        check_local_ranks(9, cores=2)


def test_the_learning_rate_rises_then_falls_and_is_never_zero():
    rates = [learning_rate(step, 100, 5, 2e-3) for step in range(1, 101)]
    assert rates[0] == pytest.approx(4e-4)
    assert rates[4] == max(rates) == 2e-3
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 2e-5


def test_a_run_of_one_step_has_a_learning_rate():
    assert learning_rate(1, 1, 1, 2e-3) == 2e-3
