# SPDX-License-Identifier: Apache-2.0
"""The options of `octavo train`, checked when a `TrainConfig` is made.

A `TrainConfig` that exists is valid: its constructor raises `ValueError` with one sentence otherwise. What is not
supported yet (`--compile` without `--zero`, devices other than the CPU and sycl) is refused, never ignored.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ADAMS = {
    "adam": "Adam",
    "adam8bit": "Adam8bit",
    "adam4bit": "Adam4bit",
    "adamw8bit": "AdamW8bit",
    "adamw4bit": "AdamW4bit",
    "paged-adam": "PagedAdam",
    "paged-adam8bit": "PagedAdam8bit",
    "paged-adamw": "PagedAdamW",
    "paged-adamw8bit": "PagedAdamW8bit",
}
LIONS = {"lion8bit": "Lion8bit", "paged-lion": "PagedLion", "paged-lion8bit": "PagedLion8bit"}
FUSED = ADAMS | LIONS
"""Optimizers of averaged gradients with fused steps, most of them with states of 8 or 4 bits or with paged states, and
their classes in octavo.optim."""
OPTIMIZERS = ("adamw", "onebit-adamw", "onebit-lamb", "zero-one-adam", "muon", "signum", "lion", *FUSED)
ONEBIT = ("onebit-adamw", "onebit-lamb")
"""Optimizers that freeze their variance and send momenta afterwards."""
ELEMENTWISE = ("adamw", *FUSED)
"""Optimizers that step each element by itself, so that a rank can step any part of a parameter, as with --zero."""
STEPPED_ALONE = (*ELEMENTWISE, "muon")
"""Optimizers that a rank can step by itself, between the rounds of --outer."""
OUTER_OPTIONS = ("outer_delay", "outer_fragments", "outer_lr", "outer_momentum")
"""The options of --outer besides the steps of a round."""
SIGN_STEPPED = ("signum", "lion")
"""Optimizers that step by the sign of what the ranks send."""
LR = {
    "adamw": 3e-3,
    "onebit-adamw": 3e-3,
    "onebit-lamb": 1e-2,
    "zero-one-adam": 3e-3,
    "muon": 3e-3,
    **dict.fromkeys(("signum", "lion", *LIONS), 6e-4),
    **dict.fromkeys(ADAMS, 3e-3),
}
"""The default of --lr for each optimizer. Together with BETA1 it is the best value, or nearly the best, on all data
sets of `octavo bench quality`. Not tuned there are 0/1 Adam, which has AdamW's rate, and the optimizers that step by
signs, which have a fifth of it, as the paper on Lion advises. LAMB's rate is relative to the size of each tensor."""
DGC_MOMENTUM = 0.9
"""The default of --beta1 for a plan with dgc or fetchsgd, which keep the momentum in the optimizer's place."""
BETA1 = {
    "adamw": 0.5,
    "onebit-adamw": 0.5,
    "onebit-lamb": 0.5,
    "zero-one-adam": 0.5,
    "muon": 0.95,
    **dict.fromkeys(("signum", "lion", *LIONS), 0.9),
    **dict.fromkeys(ADAMS, 0.5),
}
"""The default of --beta1 for each optimizer. AdamW learns these short runs faster with 0.5 than with the usual 0.9."""
BETA2 = {
    "adamw": 0.999,
    "onebit-adamw": 0.999,
    "onebit-lamb": 0.999,
    "zero-one-adam": 0.999,
    "muon": 0.999,
    **dict.fromkeys(("lion", *LIONS), 0.99),
    **dict.fromkeys(ADAMS, 0.999),
}
"""The default of --beta2 for each optimizer that has one."""
MODELS = ("tiny", "small", "220m")
DEVICES = ("auto", "cpu", "cuda", "xpu", "sycl")
PRECISIONS = ("auto", "fp32", "bf16")
RANKS_PER_CORE = 4
"""More local ranks per core than this only wait for one another."""
MOST_TIMEOUT_S = 365 * 24 * 3600
"""The largest --timeout-s: much larger ones do not fit into the type in which torch counts them."""
_HINTS = {"clip_norm": "; leave it out for no clipping"}
LR_WARMUP_SHARE = 0.05
ONEBIT_WARMUP_SHARE = 0.15
"""The share of the steps that a 1-bit optimizer spends on int4+ef before it freezes the variance; for 0/1 Adam, the
share of its steps in which its variance learns."""
LOCAL_STEP_SHARE = 0.2
"""After each such share of the steps 0/1 Adam sends half as often, but at least once in LOCAL_STEPS steps."""
LOCAL_STEPS = 8


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run.

    `batch_size` is in rows per rank and micro-batch, `seq_len` in tokens per row. Where `plan`, `lr`, `beta1` or
    `beta2` is None, the optimizer's own default is used. Where `clip_norm` is None, gradients are not clipped. `outer`
    is the number of steps from one round of `octavo.Outer` to the next, and the other `outer_…` are its delay,
    fragments, learning rate and momentum (None: its own rule decides); with `outer` 0 ranks exchange gradients in every
    step. `zero` is the stage of ZeRO and `gather` the codec by which it sends parameters (None: as they are); with
    `zero` 0 each rank has all of the model and of the optimizer's state. `compile`: whether ZeRO compiles the model's
    graphs.
    """

    data: str | None = None
    nproc: int = 2
    plan: str | None = None
    optimizer: str = "auto"
    zero: int = 0
    gather: str | None = None
    compile: bool = False
    outer: int = 0
    outer_delay: int = 0
    outer_fragments: int = 1
    outer_lr: float | None = None
    outer_momentum: float | None = None
    model: str = "tiny"
    device: str = "auto"
    precision: str = "auto"
    steps: int = 800
    batch_size: int = 8
    seq_len: int = 128
    grad_accum: int = 1
    lr: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    weight_decay: float = 0.01
    clip_norm: float | None = None
    seed: int = 0
    eval_every: int = 100
    checkpoint_every: int = 100
    out: str = "out"
    fresh: bool = False
    compare: tuple[str, ...] = ()
    port: int | None = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_names(self)
        _check_compare(self)
        _refuse_what_is_not_supported(self)
        _check_outer(self)
        _check_zero(self)
        _check_optimizer(self)

    @property
    def optimizer_name(self) -> str:
        """The optimizer after `auto` is resolved from the plan."""
        if self.optimizer != "auto":
            return self.optimizer
        if self.outer or self.zero:
            return "adamw"
        if is_sign_plan(self.resolved_plan):
            return "onebit-adamw"
        return "signum" if self.resolved_plan == "sign-vote" else "adamw"

    @property
    def is_paged(self) -> bool:
        """Whether states are in managed memory, those that the exchange keeps included."""
        return self.optimizer_name.startswith("paged-")

    @property
    def resolved_plan(self) -> str:
        """`plan`, or the default of the optimizer where it is not given."""
        if self.plan is not None:
            return self.plan
        if self.zero:
            return "int4+ef"  # sign plans are for 1-bit optimizers, which do not work with ZeRO
        return "sign-vote" if self.optimizer in SIGN_STEPPED else "sign+ef"

    @property
    def resolved_lr(self) -> float:
        """`lr`, or the default of the optimizer where it is not given."""
        return LR[self.optimizer_name] if self.lr is None else self.lr

    @property
    def resolved_beta1(self) -> float:
        """`beta1`, or, where it is not given, the default of what keeps the momentum: the plan or the optimizer."""
        if self.beta1 is not None:
            return self.beta1
        return DGC_MOMENTUM if keeps_momentum(self.resolved_plan) else BETA1[self.optimizer_name]

    @property
    def resolved_beta2(self) -> float | None:
        """`beta2`, or the default of the optimizer where it is not given; None where the optimizer has only one
        beta."""
        return BETA2.get(self.optimizer_name) if self.beta2 is None else self.beta2

    @property
    def lr_warmup_steps(self) -> int:
        """Steps over which the learning rate rises from 0 to `lr`."""
        return max(1, round(LR_WARMUP_SHARE * self.steps))

    @property
    def onebit_warmup_steps(self) -> int:
        """Steps before a 1-bit optimizer freezes its variance; 0 for other optimizers."""
        return self._variance_steps if self.optimizer_name in ONEBIT else 0

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

    def for_plan(self, plan: str) -> TrainConfig:
        """Returns the same run with another plan, and with the rounds that `plan` names if it names any (`Rounds`), in
        a folder of its own: one run of `--compare`."""
        rounds, plan_of_run = split_rounds(plan)
        own = dict(plan=plan_of_run, compare=(), out=str(Path(self.out) / plan.replace(":", "-")))
        if rounds:
            named = {"outer_delay": rounds.delay, "outer_fragments": rounds.fragments}
            own |= {"outer": rounds.every} | {name: number for name, number in named.items() if number is not None}
        else:
            own |= {name: getattr(TrainConfig, name) for name in ("outer", *OUTER_OPTIONS)}
        return dataclasses.replace(self, **own)

    @property
    def runs(self) -> list[TrainConfig]:
        """The runs of `--compare`, or this one alone."""
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


def is_sign_plan(plan: str) -> bool:
    """Whether `plan` sends signs with magnitudes, of any block size and feedback: these suit 1-bit optimizers."""
    codec = plan.removeprefix("delta+")  # another spelling of +ef21
    return re.split("[;+:]", codec)[0] == "sign"


def keeps_momentum(plan: str) -> bool:
    """Whether `plan` has dgc or fetchsgd, which keep the momentum: the optimizer must then have none."""
    return any(piece.split(":")[0] in ("dgc", "fetchsgd") for piece in re.split("[+;=]", plan))


@dataclass(frozen=True)
class Rounds:
    """Rounds of `octavo.Outer` as a text names them: "outer:EVERY/PLAN" or "outer:EVERY:DELAY:FRAGMENTS/PLAN". None:
    the text does not name it."""

    every: int
    delay: int | None = None
    fragments: int | None = None


def split_rounds(text: str) -> tuple[Rounds | None, str]:
    """Returns the rounds and the plan of "outer:20/sign+ef"; None and the plan where the text is a plan alone. Raises
    ValueError."""
    if not text.startswith("outer:"):
        return None, text
    numbers, slash, plan = text.removeprefix("outer:").partition("/")
    parts = numbers.split(":")
    if not (slash and plan and len(parts) <= 3 and all(part.isdecimal() for part in parts) and int(parts[0]) > 0):
        _fail(
            f"'{text}' must be outer:H/PLAN, such as outer:20/sign+ef for rounds of 20 steps, or "
            f"outer:H:DELAY:FRAGMENTS/PLAN"
        )
    return Rounds(*map(int, parts)), plan


def parse_compare(text: str | None) -> tuple[str, ...]:
    """Returns `"dense,sign+ef"` as a tuple of plans. Raises ValueError where a plan is empty or named twice."""
    if text is None:
        return ()
    plans = tuple(part.strip() for part in text.split(","))
    if not all(plans) or len(set(plans)) != len(plans):
        _fail(
            f"--compare must be different plans separated by commas, such as dense,sign+ef,outer:20/sign+ef, "
            f"not '{text}'"
        )
    return plans


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_local_ranks(nproc: int, cores: int) -> None:
    """Raises ValueError for more ranks on one machine than make sense."""
    if nproc > RANKS_PER_CORE * cores:
        _fail(
            f"--nproc must be at most {RANKS_PER_CORE * cores} here ({RANKS_PER_CORE} ranks per core, {cores} cores), "
            f"not {nproc}"
        )


def _fail(sentence: str) -> NoReturn:
    raise ValueError(f"[train.config] {sentence}")


def _check_ranges(config: TrainConfig) -> None:
    for name in ("nproc", "steps", "batch_size", "grad_accum", "eval_every", "checkpoint_every", "outer_fragments"):
        if getattr(config, name) < 1:
            _fail(f"--{name.replace('_', '-')} must be at least 1, not {getattr(config, name)}")
    for name in ("outer", "outer_delay"):
        if getattr(config, name) < 0:
            _fail(f"--{name.replace('_', '-')} must be at least 0 steps, not {getattr(config, name)}")
    if config.seq_len < 8:
        _fail(f"--seq-len must be at least 8 tokens, not {config.seq_len}")
    if not 0 <= config.seed < 2**63:
        _fail(f"--seed must be between 0 and 2^63-1, not {config.seed}")
    if config.port is not None and not 1 <= config.port <= 65535:
        _fail(f"--port must be between 1 and 65535, not {config.port}")
    for name in ("lr", "outer_lr", "timeout_s", "clip_norm"):
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            _fail(f"--{name.replace('_', '-')} must be finite and above 0, not {value}{_HINTS.get(name, '')}")
    if config.timeout_s > MOST_TIMEOUT_S:
        _fail(f"--timeout-s must be at most {MOST_TIMEOUT_S}, which is a year, not {config.timeout_s}")
    for name in ("beta1", "beta2", "outer_momentum"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            _fail(f"--{name.replace('_', '-')} must be at least 0 and below 1, not {value}; 0.9 or 0.99 are usual")
    if not (math.isfinite(config.weight_decay) and config.weight_decay >= 0):
        _fail(f"--weight-decay must be finite and at least 0, not {config.weight_decay}")


def _check_names(config: TrainConfig) -> None:
    _check_name("optimizer", config.optimizer, ("auto", *OPTIMIZERS))
    _check_name("device", config.device, DEVICES)
    _check_name("precision", config.precision, PRECISIONS)
    if config.model not in MODELS and not config.model.endswith(".json"):
        _fail(f"--model must be {', '.join(MODELS)} or a CONFIG.json, not '{config.model}'")
    if config.plan is not None and config.plan.startswith("outer:"):
        rounds, plan = split_rounds(config.plan)
        _fail(
            f"--plan {config.plan} names rounds, as --compare takes them: here they are --outer {rounds.every} "
            f"--plan {plan}"
        )
    if config.data == "":
        _fail("--data is empty; leave it out for the bundled tasks")
    if config.plan == "":
        _fail("--plan is empty; dense, int4+ef and sign+ef are plans")
    if not config.out:
        _fail("--out is empty; it must name a directory")


def _check_name(option: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        _fail(f"--{option} must be {', '.join(known[:-1])} or {known[-1]}, not '{name}'")


def _check_compare(config: TrainConfig) -> None:
    if config.compare and config.outer:
        _fail(f"--outer {config.outer} and --compare exclude each other: name rounds as outer:{config.outer}/PLAN")
    if config.compare and config.plan is not None:
        _fail(f"--plan {config.plan} and --compare exclude each other: --compare names the plans itself")


def _refuse_what_is_not_supported(config: TrainConfig) -> None:
    if config.zero not in (0, 1, 2, 3):
        _fail(f"--zero must be 0, 1, 2 or 3, not {config.zero}")
    if config.compile and not config.zero:
        _fail("--compile is not supported without --zero yet: leave it out, or take --zero 1, 2 or 3")
    if config.device not in ("auto", "cpu", "sycl"):
        _fail(f"--device {config.device} is not supported yet; auto, cpu and sycl are")


def _check_outer(config: TrainConfig) -> None:
    for run in config.runs:
        if run.outer and run.optimizer_name not in STEPPED_ALONE:
            _fail(
                f"--optimizer {run.optimizer_name} decides what is sent in every step, and with --outer ranks step by "
                f"themselves: use adamw or muon, or one such as paged-adamw8bit"
            )
        if run.outer and not (run.outer_delay < run.outer and run.outer_fragments <= run.outer):
            _fail(
                f"with --outer {run.outer}, --outer-delay must be below {run.outer} and --outer-fragments at most "
                f"{run.outer}, not {run.outer_delay} and {run.outer_fragments}"
            )
    if config.outer or any(split_rounds(plan)[0] for plan in config.compare):
        return
    for name in OUTER_OPTIONS:
        if getattr(config, name) != getattr(TrainConfig, name):
            _fail(f"--{name.replace('_', '-')} needs --outer, the steps of a round")


def _check_zero(config: TrainConfig) -> None:
    if not config.zero:
        if config.gather is not None:
            _fail(f"--gather {config.gather} needs --zero, whose parameters it sends: --zero 1, 2 or 3")
        return
    for run in config.runs:
        if run.outer:
            _fail(
                f"--zero {config.zero} and rounds of local steps exclude each other, because a rank that steps by "
                f"itself needs the whole model: leave --zero out, or the rounds, with a plan such as int4+ef"
            )
        if run.optimizer_name not in ELEMENTWISE:
            _fail(
                f"--optimizer {run.optimizer_name} steps whole parameters, or decides what is sent, and with --zero a "
                f"rank has parts of them: use adamw, or one such as paged-adamw8bit or lion8bit"
            )
        if run.resolved_plan.split(":")[0] == "auto":
            _fail(
                f"--plan {run.resolved_plan} measures the exchanges of replicas: with --zero name a plan, such as "
                f"int4+ef, or what `octavo advise` says"
            )


def _check_optimizer(config: TrainConfig) -> None:
    for run in config.runs:
        name, plan = run.optimizer_name, run.resolved_plan
        if keeps_momentum(plan) and name not in ("adamw", *ADAMS):
            _fail(
                f"the plan {plan} keeps the momentum, and --optimizer {name} has one of its own; adamw goes without one"
            )
        if name in ONEBIT and not is_sign_plan(plan):
            _fail(
                f"--optimizer {name} needs a sign plan such as sign or sign+ef, not '{plan}'; "
                f"adamw and muon work with every plan"
            )
        if name == "zero-one-adam" and config.clip_norm is not None:
            _fail(
                "--clip-norm has no meaning for zero-one-adam, which sends updates of several steps, not gradients: "
                "leave it out, or take onebit-adamw"
            )
        if name == "zero-one-adam" and plan.split(":")[0] in ("sign-vote", "auto"):
            _fail(f"--optimizer zero-one-adam needs a plan that keeps magnitudes, such as sign+ef, not '{plan}'")
        if name not in SIGN_STEPPED:
            continue
        if plan.startswith(("topk", "threshold", "randomk")):
            _fail(
                f"--optimizer {name} steps by the sign of every value, and {plan} leaves most values unsent: use "
                f"sign-vote, or adamw, which works with every plan"
            )
        if config.clip_norm is not None:
            _fail(f"--clip-norm has no meaning for {name}, whose steps have the size of --lr: leave it out")
        if config.beta2 is not None and name not in BETA2:
            _fail(f"--beta2 has no meaning for {name}, which has one momentum, --beta1: leave it out")
