# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run: the options of `octavo train`, checked, and what follows from them.

A `TrainConfig` that exists is valid: its constructor raises `ValueError` with one sentence otherwise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from octavo._C import Plan
from octavo.train.config_checks import check
from octavo.train.optimizer_kinds import KINDS, Kind
from octavo.train.options import OUTER_OPTIONS, Options
from octavo.train.plan_text import split_rounds

LR_WARMUP_SHARE = 0.05
ONEBIT_WARMUP_SHARE = 0.15
"""The share of the steps that a 1-bit optimizer spends on int4+ef before it freezes the variance; for 0/1 Adam, the
share of its steps in which its variance learns."""
LOCAL_STEP_SHARE = 0.2
"""After each such share of the steps 0/1 Adam sends half as often, but at least once in LOCAL_STEPS steps."""
LOCAL_STEPS = 8


@dataclass(frozen=True)
class TrainConfig(Options):
    """Everything that decides a run: the options, checked, and what follows from them."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def optimizer_name(self) -> str:
        """The optimizer after `auto` is resolved from the plan."""
        if self.optimizer != "auto":
            return self.optimizer
        if self.outer or self.zero:
            return "adamw"
        if self.sends_signs:
            return "onebit-adamw"
        return "signum" if self.resolved_plan == "sign-vote" else "adamw"

    @property
    def kind(self) -> Kind:
        """What is known of the optimizer."""
        return KINDS[self.optimizer_name]

    @property
    def is_paged(self) -> bool:
        """Whether states are in managed memory: the optimizer's and, except with `outer`, those that the exchange
        keeps."""
        return self.kind.is_paged

    @property
    def resolved_plan(self) -> str:
        """`plan`, or the default of the optimizer where it is not given."""
        if self.plan is not None:
            return self.plan
        if self.zero:  # sign plans are for rounds, and for 1-bit optimizers, which do not work with ZeRO
            return "int4+ef"
        named = KINDS.get(self.optimizer)  # None for auto, which follows from the plan
        if named is None or (self.outer and named.can_step_alone):
            return "sign+ef"
        return named.plan

    @property
    def parsed_plan(self) -> Plan:
        """`resolved_plan`, parsed."""
        return Plan(self.resolved_plan)

    @property
    def exchange_plan(self) -> Plan:
        """`parsed_plan` with `beta1` as its momentum, where it keeps one and `beta1` is given."""
        plan = self.parsed_plan
        return plan if plan.momentum is None or self.beta1 is None else plan.with_momentum(self.beta1)

    @property
    def sends_signs(self) -> bool:
        """Whether the plan sends signs with magnitudes, of any block size and feedback: these suit 1-bit optimizers."""
        return self.parsed_plan.codec.partition(":")[0] == "sign"

    @property
    def resolved_lr(self) -> float:
        """`lr`, or the default of the optimizer where it is not given."""
        return self.kind.lr if self.lr is None else self.lr

    @property
    def resolved_beta1(self) -> float:
        """`beta1`, or, where it is not given, the default of what keeps the momentum: the plan or the optimizer."""
        if self.beta1 is not None:
            return self.beta1
        momentum_of_plan = self.parsed_plan.momentum
        return self.kind.beta1 if momentum_of_plan is None else momentum_of_plan

    @property
    def resolved_beta2(self) -> float | None:
        """`beta2`, or the default of the optimizer where it is not given; None where the optimizer has only one
        beta."""
        return self.kind.beta2 if self.beta2 is None else self.beta2

    @property
    def lr_warmup_steps(self) -> int:
        """Steps over which the learning rate rises from 0 to `lr`."""
        return max(1, round(LR_WARMUP_SHARE * self.steps))

    @property
    def onebit_warmup_steps(self) -> int:
        """Steps before a 1-bit optimizer freezes its variance; 0 for other optimizers."""
        return self._variance_steps if self.kind.freezes_variance else 0

    @property
    def zero_one_schedule(self) -> dict[str, int]:
        """The options of `octavo.optim.ZeroOneAdam` that decide what it sends in which step."""
        doubled_after = max(1, round(LOCAL_STEP_SHARE * self.steps))
        return dict(
            var_freeze_step=self._variance_steps, local_step_scaler=doubled_after, local_step_clipper=LOCAL_STEPS
        )

    @property
    def _variance_steps(self) -> int:
        return max(1, round(ONEBIT_WARMUP_SHARE * self.steps))

    @property
    def divergence_advice(self) -> str:
        """What to try after this run has diverged, or after all runs of `--compare` have."""
        could_clip = self.clip_norm is None and all(run.kind.clips for run in self.runs)
        return f"try a smaller --lr{' or --clip-norm 1' if could_clip else ''}, with --fresh or another --out"

    def tokens_per_step(self, ranks: int) -> int:
        """Returns the tokens of an optimizer step on so many ranks, padding included."""
        return self.batch_size * self.seq_len * self.grad_accum * ranks

    def for_plan(self, plan: str) -> TrainConfig:
        """Returns the same run with another plan, and with the rounds that `plan` names if it names any (`Rounds`), in
        a folder of its own: one run of `--compare`."""
        rounds, plan_of_run = split_rounds(plan)
        own = dict(plan=plan_of_run, compare=(), out=str(Path(self.out) / plan.replace(":", "-")))
        if rounds:
            own |= rounds.options
        else:
            own |= {name: getattr(TrainConfig, name) for name in ("outer", *OUTER_OPTIONS)}
        return dataclasses.replace(self, **own)

    @property
    def runs(self) -> list[TrainConfig]:
        """The runs of `--compare`, or only this one."""
        return [self.for_plan(plan) for plan in self.compare] or [self]

    def to_args(self) -> list[str]:
        """Returns the command line that gives this configuration again."""
        args: list[str] = []
        for field in dataclasses.fields(self):
            value, flag = getattr(self, field.name), "--" + field.name.replace("_", "-")
            if value == field.default or value is None:
                continue
            if value is True:
                args.append(flag)
            elif isinstance(value, tuple):
                args += [flag, ",".join(value)]
            else:
                args += [flag, str(value)]
        return args
