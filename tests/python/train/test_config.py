# SPDX-License-Identifier: Apache-2.0
"""The options of a run: what is refused and in which words, and what follows from which option."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.cores import check_local_ranks
from octavo.train.config import TrainConfig
from octavo.train.optimizer_kinds import FUSED, OPTIMIZERS
from octavo.train.plan_text import parse_compare
from octavo.train.schedule import learning_rate

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(steps=0), "--steps must be at least 1, not 0"),
        (dict(nproc=-1), "--nproc must be at least 1, not -1"),
        (dict(batch_size=0), "--batch-size must be at least 1"),
        (dict(grad_accum=0), "--grad-accum must be at least 1"),
        (dict(eval_every=0), "--eval-every must be at least 1"),
        (dict(checkpoint_every=0), "--checkpoint-every must be at least 1"),
        (dict(seq_len=4), "--seq-len must be at least 8 tokens, not 4"),
        (dict(seed=-1), "--seed must be between"),
        (dict(lr=0.0), "--lr must be finite and above 0, not 0.0"),
        (dict(lr=float("nan")), "--lr must be finite and above 0, not nan"),
        (dict(optimizer="muon", adamw_lr=-1.0), "--adamw-lr must be finite and above 0, not -1.0"),
        (dict(plan="dense", adamw_lr=1e-3), "--adamw-lr is for the AdamW beside muon: give --optimizer adamw its rate"),
        (dict(weight_decay=-0.1), "--weight-decay must be finite and at least 0, not -0.1"),
        (dict(beta1=1.0), "--beta1 must be at least 0 and below 1, not 1.0; 0.9 or 0.99 are usual"),
        (dict(beta1=-0.1), "--beta1 must be at least 0 and below 1, not -0.1"),
        (dict(beta2=float("nan")), "--beta2 must be at least 0 and below 1, not nan"),
        (dict(clip_norm=0.0), "--clip-norm must be finite and above 0, not 0.0; leave it out for no clipping"),
        (dict(clip_norm=float("inf")), "--clip-norm must be finite and above 0, not inf"),
        (dict(timeout_s=0.0), "--timeout-s must be finite and above 0, not 0.0"),
        (dict(timeout_s=0.001), "--timeout-s must be at least 1, not 0.001"),
        (dict(timeout_s=1e15), "--timeout-s must be at most 31536000, which is a year, not 1000000000000000.0"),
        (dict(data=""), "--data is empty; leave it out for the bundled tasks"),
        (dict(port=70000), "--port must be between 1 and 65535"),
        (
            dict(optimizer="sgd"),
            "--optimizer must be auto, adamw, onebit-adamw, onebit-lamb, zero-one-adam, muon, signum, lion, adam, "
            "adam8bit, adam4bit, adamw8bit, adamw4bit, paged-adam, paged-adam8bit, paged-adamw, paged-adamw8bit, "
            "lion32bit, lion8bit, paged-lion or paged-lion8bit, not 'sgd'",
        ),
        (dict(model="huge"), "a CONFIG.json, not 'huge'"),
        (dict(device="tpu"), "not 'tpu'"),
        (dict(precision="fp64"), "--precision must be auto, fp32 or bf16, not 'fp64'"),
        (dict(plan=""), "--plan is empty; dense"),
        (dict(plan="int4", compare=("dense",)), "--plan int4 and --compare exclude each other"),
        (
            dict(plan="outer:20:5/sign+ef"),
            "names rounds, as --compare takes them: here they are --outer 20 --outer-delay 5 --plan sign",
        ),
        (
            dict(plan="outer:20:10:4/sign+ef"),
            "here they are --outer 20 --outer-delay 10 --outer-fragments 4 --plan sign+ef",
        ),
        (dict(out=""), "--out is empty; it must name a directory"),
        (dict(zero=4), "--zero must be 0, 1, 2 or 3, not 4"),
        (
            dict(optimizer="onebit-adamw", plan="dense"),
            "--optimizer onebit-adamw needs a sign plan such as sign or sign+ef, not 'dense'",
        ),
        (
            dict(optimizer="onebit-adamw", compare=("sign", "dense")),
            "not 'dense'; signum works with sign-vote, adamw with",
        ),
        (dict(optimizer="onebit-lamb", plan="int4+ef"), "--optimizer onebit-lamb needs a sign plan such as sign"),
        (
            dict(optimizer="signum", plan="topk:0.01+ef"),
            "--optimizer signum steps by the sign of every value, and topk:0.01+ef leaves most values unsent: use "
            "sign-vote, or adamw, which works with every other plan",
        ),
        (dict(optimizer="lion", compare=("sign-vote", "randomk:0.1")), "and randomk:0.1 leaves most values unsent"),
        (dict(optimizer="lion", plan="delta+topk:0.01"), "and delta+topk:0.01 leaves most values unsent"),
        (dict(zero=1, gather="topk:0.1"), "--gather topk:0.1: parameters are gathered only by a codec such as int8"),
        (dict(zero=1, gather="int8+ef"), "--gather int8+ef: parameters are gathered only by a codec such as int8"),
        (dict(zero=1, plan="auto;bias=dense"), "measures the exchanges of replicas: with --zero name a plan"),
        (dict(optimizer="lion", plan="threshold:3"), "and threshold:3 leaves most values unsent"),
        (dict(optimizer="lion", plan="lsh:topk:0.01"), "and lsh:topk:0.01 leaves most values unsent"),
        (dict(plan="int4+ef;x=sign-vote", optimizer="adamw"), "x=sign-vote sends the majority's signs without magni"),
        (dict(optimizer="zero-one-adam", clip_norm=1.0), "--clip-norm has no meaning for zero-one-adam, which sends"),
        (dict(optimizer="zero-one-adam", plan="auto"), "--optimizer zero-one-adam needs a plan that keeps magnitudes"),
        (dict(optimizer="signum", clip_norm=1.0), "--clip-norm has no meaning for signum, whose steps have the size"),
        (dict(plan="sign-vote", optimizer="adamw"), "--plan sign-vote sends the majority's signs without magnitudes"),
        (dict(plan="sign-vote", zero=3), "use sign+ef or int4+ef with --optimizer adamw"),
        (dict(plan="sign-vote", beta2=0.99), "--beta2 has no meaning for signum, which has one momentum, --beta1"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(change, words):
    with pytest.raises(ValueError, match=r"^\[train\.config\] --") as caught:
        TrainConfig(**change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_that_is_no_plan_is_refused():
    with pytest.raises(ValueError, match="int9"):
        TrainConfig(plan="int9")


def test_the_optimizer_follows_from_the_plan():
    assert TrainConfig(plan="sign+ef").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign:1024+ef").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign;*head*=dense").optimizer_name == "onebit-adamw"
    assert TrainConfig(plan="sign-vote").optimizer_name == "signum"
    assert TrainConfig(plan="int4+ef").optimizer_name == "adamw"
    assert TrainConfig(plan="sign+ef", optimizer="adamw").optimizer_name == "adamw"


def test_the_plan_and_the_rates_follow_from_the_optimizer():
    assert TrainConfig().resolved_plan == "sign+ef"
    for name in ("onebit-adamw", "onebit-lamb", "zero-one-adam"):
        assert TrainConfig(optimizer=name).resolved_plan == "sign+ef"
    for name in ("adamw", "muon", "lion32bit", "lion8bit", "paged-adamw8bit"):
        assert TrainConfig(optimizer=name).resolved_plan == "int4+ef"
        assert TrainConfig(optimizer=name, outer=20).resolved_plan == "sign+ef"
        assert TrainConfig(optimizer=name, plan="sign+ef").resolved_plan == "sign+ef"
    for name in ("signum", "lion"):
        assert TrainConfig(optimizer=name).resolved_plan == "sign-vote"
        assert TrainConfig(optimizer=name).resolved_lr < TrainConfig().resolved_lr == 3e-3
        assert TrainConfig(optimizer=name, plan="int4+ef", lr=1e-2).resolved_lr == 1e-2
    assert TrainConfig().for_plan("sign-vote").resolved_lr == TrainConfig(optimizer="signum").resolved_lr
    assert TrainConfig().resolved_beta2 == 0.999
    assert TrainConfig(optimizer="lion").resolved_beta2 == 0.99
    assert TrainConfig(optimizer="signum").resolved_beta2 is None


def test_optimizers_of_few_bits_have_the_defaults_of_their_family():
    for name in FUSED:
        family = "lion" if "lion" in name else "adamw"
        config, of_family = TrainConfig(optimizer=name), TrainConfig(optimizer=family)
        for figure in ("resolved_lr", "resolved_beta1", "resolved_beta2"):
            assert getattr(config, figure) == getattr(of_family, figure)
        assert config.resolved_plan == "int4+ef"
        if family == "adamw":
            assert TrainConfig(optimizer=name, plan="dgc:0.01").resolved_beta1 == 0.9  # the value of the plan
        else:
            with pytest.raises(ValueError, match=f"the plan dgc:0.01 keeps the momentum, and --optimizer {name} has"):
                TrainConfig(optimizer=name, plan="dgc:0.01")


def test_beta1_has_a_default_for_each_optimizer():
    assert TrainConfig(plan="dense").resolved_beta1 == TrainConfig(plan="sign+ef").resolved_beta1 == 0.5
    assert TrainConfig(plan="dense", optimizer="muon").resolved_beta1 == 0.95
    assert TrainConfig(plan="dense", optimizer="muon", beta1=0.0).resolved_beta1 == 0.0
    assert TrainConfig(plan="topk:0.01+dgc:0.8").resolved_beta1 == 0.8
    assert TrainConfig(plan="int4+ef;dgc=dense").resolved_beta1 == 0.5  # the name of a parameter


def test_one_bit_warm_up_is_15_percent_of_the_steps():
    assert TrainConfig(steps=400).onebit_warmup_steps == 60
    assert TrainConfig(steps=1).onebit_warmup_steps == 1
    assert TrainConfig(steps=400, plan="dense").onebit_warmup_steps == 0


def test_the_schedule_of_zero_one_adam_is_a_share_of_the_steps():
    schedule = TrainConfig(optimizer="zero-one-adam", steps=400).zero_one_schedule
    assert schedule == dict(var_freeze_step=60, local_step_scaler=80, local_step_clipper=8)
    assert TrainConfig(optimizer="zero-one-adam", steps=400).onebit_warmup_steps == 0


def test_the_advice_on_divergence_is_taken_by_the_optimizer():
    for name in OPTIMIZERS:
        config = TrainConfig(optimizer=name)
        try:
            clipped = dataclasses.replace(config, clip_norm=1.0)
        except ValueError:
            assert config.divergence_advice == "try a smaller --lr, with --fresh or another --out"
        else:
            assert config.divergence_advice == "try a smaller --lr or --clip-norm 1, with --fresh or another --out"
            assert "--clip-norm" not in clipped.divergence_advice
    assert "--clip-norm 1" in TrainConfig(compare=("dense", "int4+ef")).divergence_advice
    assert "--clip-norm" not in TrainConfig(compare=("dense", "sign-vote")).divergence_advice


def test_the_help_says_what_an_option_does_with_every_plan():
    help_of = {field.name: field.metadata["help"] for field in dataclasses.fields(TrainConfig)}
    for plan in ("topk:0.01+dgc", "sketch:0.1+fetchsgd"):
        assert TrainConfig(plan=plan).resolved_beta1 == 0.9
        assert help_of["beta1"].count(plan.partition("+")[2]) == 2
    assert "is paged, too, except with --outer" in help_of["optimizer"]


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().steps = 1


def test_to_args_names_only_what_differs_from_the_defaults():
    assert TrainConfig().to_args() == []
    config = TrainConfig(data="a b.json", steps=3, fresh=True, compare=("dense", "sign"), grad_accum=2)
    expected = ["--steps", "3", "--grad-accum", "2", "--fresh", "--compare", "dense,sign"]
    assert config.to_args() == ["--data", "a b.json", *expected]
    assert TrainConfig(beta1=0.0, clip_norm=1.0).to_args() == ["--beta1", "0.0", "--clip-norm", "1.0"]


def test_a_leg_of_a_comparison_lives_in_a_folder_of_its_own():
    run = TrainConfig(out="x", compare=("dense", "topk:0.01")).for_plan("topk:0.01")
    assert (run.plan, run.compare, run.out) == ("topk:0.01", (), "x/topk-0.01")


def test_compare_wants_different_plans():
    assert parse_compare(None) == ()
    assert parse_compare("dense, sign+ef") == ("dense", "sign+ef")
    for text in ("", "dense,", "dense,dense", "dense,zero3"):
        with pytest.raises(ValueError, match="--compare"):
            parse_compare(text)


def test_more_ranks_than_make_sense_are_refused():
    check_local_ranks(8, cores=2)
    with pytest.raises(ValueError, match=r"--nproc must be at most 8 here .*, not 9"):
        check_local_ranks(9, cores=2)


def test_the_learning_rate_rises_then_falls_and_is_never_zero():
    rates = [learning_rate(step, 100, 5, 2e-3) for step in range(1, 101)]
    assert rates[0] == pytest.approx(4e-4)
    assert rates[4] == max(rates) == 2e-3
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 2e-5


def test_a_run_of_one_step_has_a_learning_rate():
    assert learning_rate(1, 1, 1, 2e-3) == 2e-3
