# SPDX-License-Identifier: Apache-2.0
"""What is refused of the options of `octavo train`, in one sentence each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo._C import Outer, Plan, echo_backend, require_gather, shard_compressor
from octavo.durable_files import printable
from octavo.train.errors import refuse
from octavo.train.model_sizes import MODELS
from octavo.train.optimizer_kinds import OPTIMIZERS
from octavo.train.options import DEVICES, OUTER_OPTIONS, PRECISIONS, either
from octavo.train.plan_text import are_possible, split_rounds

if TYPE_CHECKING:
    from octavo.train.config import TrainConfig

LEAST_TIMEOUT_S = 1
"""The smallest --timeout-s: in less, ranks cannot meet, because some need longer than others to start."""
MOST_TIMEOUT_S = 365 * 24 * 3600
"""The largest --timeout-s: much larger ones do not fit into the type in which torch counts them."""
_HINTS = {"clip_norm": "; leave it out for no clipping"}


def check(config: TrainConfig) -> None:
    """Raises ValueError for options that make no sense or exclude each other."""
    _check_ranges(config)
    _check_names(config)
    _check_compare(config)
    _check_outer(config)
    _check_zero(config)
    _check_gather(config)
    for run in config.runs:
        _check_optimizer(run)


def _check_ranges(config: TrainConfig) -> None:
    for name in ("nproc", "steps", "batch_size", "grad_accum", "eval_every", "checkpoint_every", "outer_fragments"):
        if getattr(config, name) < 1:
            refuse(f"--{name.replace('_', '-')} must be at least 1, not {getattr(config, name)}")
    for name in ("outer", "outer_delay"):
        if getattr(config, name) < 0:
            refuse(f"--{name.replace('_', '-')} must be at least 0 steps, not {getattr(config, name)}")
    if config.seq_len < 8:
        refuse(f"--seq-len must be at least 8 tokens, not {config.seq_len}")
    if not 0 <= config.seed < 2**63:
        refuse(f"--seed must be between 0 and 2^63-1, not {config.seed}")
    if config.port is not None and not 1 <= config.port <= 65535:
        refuse(f"--port must be between 1 and 65535, not {config.port}")
    for name in ("lr", "adamw_lr", "outer_lr", "timeout_s", "clip_norm"):
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            refuse(f"--{name.replace('_', '-')} must be finite and above 0, not {value}{_HINTS.get(name, '')}")
    if config.timeout_s < LEAST_TIMEOUT_S:
        refuse(f"--timeout-s must be at least {LEAST_TIMEOUT_S}, not {config.timeout_s}")
    if config.timeout_s > MOST_TIMEOUT_S:
        refuse(f"--timeout-s must be at most {MOST_TIMEOUT_S}, which is a year, not {config.timeout_s}")
    for name in ("beta1", "beta2", "outer_momentum"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            refuse(f"--{name.replace('_', '-')} must be at least 0 and below 1, not {value}; 0.9 or 0.99 are usual")
    if not (math.isfinite(config.weight_decay) and config.weight_decay >= 0):
        refuse(f"--weight-decay must be finite and at least 0, not {config.weight_decay}")


def _check_names(config: TrainConfig) -> None:
    _check_name("optimizer", config.optimizer, ("auto", *OPTIMIZERS))
    _check_name("device", config.device, DEVICES)
    _check_name("precision", config.precision, PRECISIONS)
    if config.model not in MODELS and not config.model.endswith(".json"):
        refuse(f"--model must be {', '.join(MODELS)} or a CONFIG.json, not '{config.model}'")
    if config.plan is not None and config.plan.startswith("outer:"):
        rounds, plan = split_rounds(config.plan)
        options = " ".join(f"--{name.replace('_', '-')} {number}" for name, number in rounds.options.items())
        refuse(f"--plan {config.plan} names rounds, as --compare takes them: here they are {options} --plan {plan}")
    if config.data == "":
        refuse("--data is empty; leave it out for the bundled tasks")
    if config.plan == "":
        refuse("--plan is empty; dense, int4+ef and sign+ef are plans")
    if not config.out:
        refuse("--out is empty; it must name a directory")
    if printable(config.out) != config.out:
        refuse(
            f"--out {printable(config.out)} is not valid UTF-8, and the packages that write models and tokenizers "
            f"take only names in UTF-8: name another directory"
        )


def _check_name(option: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        refuse(f"--{option} must be {either(known)}, not '{name}'")


def _check_compare(config: TrainConfig) -> None:
    if config.compare and config.outer:
        refuse(f"--outer {config.outer} and --compare exclude each other: name rounds as outer:{config.outer}/PLAN")
    if config.compare and config.plan is not None:
        refuse(f"--plan {config.plan} and --compare exclude each other: --compare names the plans itself")


def _check_outer(config: TrainConfig) -> None:
    for run in config.runs:
        if run.outer and not run.kind.can_step_alone:
            refuse(
                f"--optimizer {run.optimizer_name} decides what is sent in every step, and with --outer ranks step by "
                f"themselves: use adamw or muon, or one such as paged-adamw8bit or lion32bit"
            )
        if run.outer and not are_possible(run.outer, run.outer_delay, run.outer_fragments):
            refuse(
                f"with --outer {run.outer}, --outer-delay must be below {run.outer} and --outer-fragments at most "
                f"{run.outer}, not {run.outer_delay} and {run.outer_fragments}"
            )
        if run.outer:
            Outer.require_plan(run.parsed_plan)
    if config.outer or any(split_rounds(plan)[0] for plan in config.compare):
        return
    for name in OUTER_OPTIONS:
        if getattr(config, name) != getattr(type(config), name):
            refuse(f"--{name.replace('_', '-')} needs --outer, the steps of a round")


def _check_zero(config: TrainConfig) -> None:
    if config.zero not in (0, 1, 2, 3):
        refuse(f"--zero must be 0, 1, 2 or 3, not {config.zero}")
    if not config.zero:
        return
    for run in config.runs:
        if run.outer:
            refuse(
                f"--zero {config.zero} and rounds of local steps exclude each other, because a rank that steps by "
                f"itself needs the whole model: leave --zero out, or the rounds, with a plan such as int4+ef"
            )
        if run.kind.steps_by_signs:
            refuse(
                f"--optimizer {run.optimizer_name} sends what each rank's own momentum makes of its gradient, and with "
                f"--zero ranks average gradients: use lion32bit, which is Lion with averaged gradients, or adamw"
            )
        if not run.kind.is_elementwise:
            refuse(
                f"--optimizer {run.optimizer_name} steps whole parameters, or decides what is sent, and with --zero a "
                f"rank has parts of them: use adamw, or one such as paged-adamw8bit or lion32bit"
            )
        if run.parsed_plan.is_auto:
            refuse(
                f"--plan {run.resolved_plan} measures the exchanges of replicas: with --zero name a plan, such as "
                f"int4+ef, or what `octavo advise` says"
            )
        _check_plan_of_shares(run)


def _check_plan_of_shares(run: TrainConfig) -> None:
    """Refuses plans that only ranks with all averages can exchange by, also as the plan of some parameters."""
    of_most, rules = run.resolved_plan.partition(";")[0], run.parsed_plan.rules
    for plan in (of_most, *(plan for _, plan in rules)):
        if not _can_share_out(plan):
            subject = f"{run.resolved_plan} has {plan}, which" if rules else plan
            refuse(
                f"--plan {subject} is for ranks that all get the averages of whole parameters, and with --zero a rank "
                f"gets those of its parts: use int4+ef or another codec of values, without feedback or with +ef, or "
                f"--zero 0"
            )


def _can_share_out(plan: str) -> bool:
    """Whether ranks can exchange by a plan, one without rules, where each keeps the averages of its own parts, as with
    --zero. It asks what decides it in a run, the exchange of such ranks, with other ranks that do nothing."""
    others = echo_backend(2)
    try:
        shard_compressor(others, Plan(plan), parameters=[("any", 1, False, 1)], rows=[1], timeout_s=LEAST_TIMEOUT_S)
    except ValueError:
        return False
    return True


def _check_gather(config: TrainConfig) -> None:
    if config.gather is None:
        return
    if not config.zero:
        refuse(f"--gather {config.gather} needs --zero, whose parameters it sends: --zero 1, 2 or 3")
    try:
        require_gather(Plan(config.gather))
    except ValueError:
        refuse(
            f"--gather {config.gather}: parameters are gathered only by a codec such as int8, bf16 or fp8, which sends "
            f"all values in a fixed number of bytes, rounded to the nearest code"
        )


def _check_optimizer(run: TrainConfig) -> None:
    name, plan = run.optimizer_name, run.resolved_plan
    if run.adamw_lr is not None and not run.kind.has_adamw_beside:
        refuse(f"--adamw-lr is for the AdamW beside muon: give --optimizer {name} its rate by --lr")
    if run.parsed_plan.momentum is not None and not run.kind.can_lack_momentum:
        refuse(f"the plan {plan} keeps the momentum, and --optimizer {name} has one of its own; adamw goes without one")
    if run.kind.steps_by_signs:
        _check_steps_by_signs(run)
    else:
        _check_steps_by_values(run)


def _check_steps_by_signs(run: TrainConfig) -> None:
    name = run.optimizer_name
    if run.parsed_plan.leaves_unsent:
        refuse(
            f"--optimizer {name} steps by the sign of every value, and {run.resolved_plan} leaves most values unsent: "
            f"use sign-vote, or adamw, which works with every other plan"
        )
    if run.clip_norm is not None:
        refuse(f"--clip-norm has no meaning for {name}, whose steps have the size of --lr: leave it out")
    if run.beta2 is not None and run.kind.beta2 is None:
        refuse(f"--beta2 has no meaning for {name}, which has one momentum, --beta1: leave it out")


def _check_steps_by_values(run: TrainConfig) -> None:
    name, plan = run.optimizer_name, run.resolved_plan
    if run.kind.freezes_variance and not run.sends_signs:
        refuse(
            f"--optimizer {name} needs a sign plan such as sign or sign+ef, not '{plan}'; signum works with sign-vote, "
            f"adamw with every other plan"
        )
    if run.kind.sends_updates:
        _check_updates(run)
    if run.parsed_plan.votes:
        refuse(
            f"--plan {plan} sends the majority's signs without magnitudes, for signum and lion: use sign+ef or int4+ef "
            f"with --optimizer {name}"
        )


def _check_updates(run: TrainConfig) -> None:
    name, plan = run.optimizer_name, run.parsed_plan
    if run.clip_norm is not None:
        refuse(
            f"--clip-norm has no meaning for {name}, which sends updates of several steps, not gradients: leave it "
            f"out, or take onebit-adamw"
        )
    if plan.votes or plan.is_auto:
        refuse(f"--optimizer {name} needs a plan that keeps magnitudes, such as sign+ef, not '{run.resolved_plan}'")
