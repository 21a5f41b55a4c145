# SPDX-License-Identifier: Apache-2.0
"""The options of `octavo train`, checked once, at the door.

A `TrainConfig` that exists is valid: its constructor raises `ValueError` with one sentence otherwise. What
is not built yet (`--zero` above 0, `--compile`, devices other than the CPU and sycl) is refused, never ignored.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path

OPTIMIZERS = ("adamw", "onebit-adamw")
MODELS = ("tiny", "small", "220m")
DEVICES = ("auto", "cpu", "cuda", "xpu", "sycl")
PRECISIONS = ("auto", "fp32", "bf16")
RANKS_PER_CORE = 4
"""More local ranks a core than this only wait for one another."""
LR_WARMUP_SHARE = 0.05
ONEBIT_WARMUP_SHARE = 0.15
"""Share of the steps that 1-bit AdamW spends on int4+ef before it freezes the variance."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run. `batch_size` is rows a rank and micro-step, `seq_len` tokens a row."""

    data: str | None = None
    nproc: int = 2
    plan: str = "sign+ef"
    optimizer: str = "auto"
    zero: int = 0
    compile: bool = False
    model: str = "tiny"
    device: str = "auto"
    precision: str = "auto"
    steps: int = 800
    batch_size: int = 8
    seq_len: int = 128
    grad_accum: int = 1
    lr: float = 2e-3
    weight_decay: float = 0.01
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
        _refuse_later_work(self)
        _check_optimizer(self)

    @property
    def optimizer_name(self) -> str:
        """The optimizer after `auto` is resolved from the plan."""
        if self.optimizer != "auto":
            return self.optimizer
        return "onebit-adamw" if is_sign_plan(self.plan) else "adamw"

    @property
    def lr_warmup_steps(self) -> int:
        """Steps over which the learning rate rises from 0 to `lr`."""
        return max(1, round(LR_WARMUP_SHARE * self.steps))

    @property
    def onebit_warmup_steps(self) -> int:
        """Steps before 1-bit AdamW freezes its variance; 0 for other optimizers."""
        if self.optimizer_name != "onebit-adamw":
            return 0
        return max(1, round(ONEBIT_WARMUP_SHARE * self.steps))

    def for_plan(self, plan: str) -> TrainConfig:
        """The same run with another plan, in a folder of its own: one leg of `--compare`."""
        return dataclasses.replace(self, plan=plan, compare=(), out=str(Path(self.out) / plan.replace(":", "-")))

    def to_args(self) -> list[str]:
        """The command line that gives this configuration again."""
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
    """Whether `plan` sends signs with magnitudes, of any block size and feedback: these suit 1-bit AdamW."""
    return plan.split("+")[0].split(":")[0] == "sign"


def parse_compare(text: str | None) -> tuple[str, ...]:
    """`"dense,sign+ef"` as a tuple of plans. Raises ValueError where a plan is empty or named twice."""
    if text is None:
        return ()
    plans = tuple(part.strip() for part in text.split(","))
    if not all(plans) or len(set(plans)) != len(plans):
        _fail("different plans separated by commas for --compare", f"'{text}'")
    return plans


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_local_ranks(nproc: int, cores: int) -> None:
    """Refuses more ranks on one machine than make sense. Raises ValueError."""
    if nproc > RANKS_PER_CORE * cores:
        _fail(
            f"--nproc of at most {RANKS_PER_CORE * cores} ({RANKS_PER_CORE} ranks a core, {cores} cores)",
            nproc,
        )


def _fail(expected: str, got: object) -> None:
    raise ValueError(f"[train.config] expected {expected}, got {got}")


def _check_ranges(config: TrainConfig) -> None:
    for name in ("nproc", "steps", "batch_size", "grad_accum", "eval_every", "checkpoint_every"):
        if getattr(config, name) < 1:
            _fail(f"--{name.replace('_', '-')} of at least 1", getattr(config, name))
    if config.seq_len < 8:
        _fail("--seq-len of at least 8 tokens", config.seq_len)
    if not 0 <= config.seed < 2**63:
        _fail("--seed between 0 and 2^63-1", config.seed)
    if not (math.isfinite(config.lr) and config.lr > 0):
        _fail("a finite --lr above 0", config.lr)
    if not (math.isfinite(config.weight_decay) and config.weight_decay >= 0):
        _fail("a finite --weight-decay of at least 0", config.weight_decay)
    if not (math.isfinite(config.timeout_s) and config.timeout_s > 0):
        _fail("a finite --timeout-s above 0", config.timeout_s)
    if config.port is not None and not 1 <= config.port <= 65535:
        _fail("--port between 1 and 65535", config.port)


def _check_names(config: TrainConfig) -> None:
    if config.optimizer not in ("auto", *OPTIMIZERS):
        _fail(f"--optimizer auto, {' or '.join(OPTIMIZERS)}", f"'{config.optimizer}'")
    if config.model not in MODELS and not config.model.endswith(".json"):
        _fail(f"--model {', '.join(MODELS)} or a CONFIG.json", f"'{config.model}'")
    if config.device not in DEVICES:
        _fail(f"--device {', '.join(DEVICES)}", f"'{config.device}'")
    if config.precision not in PRECISIONS:
        _fail(f"--precision {', '.join(PRECISIONS)}", f"'{config.precision}'")
    if not config.plan:
        _fail("a --plan such as dense, int4+ef or sign+ef", "an empty one")
    if not config.out:
        _fail("a directory for --out", "an empty one")


def _check_compare(config: TrainConfig) -> None:
    if config.compare and config.plan != TrainConfig.plan:  # the default
        _fail("--plan or --compare, which names its own plans", f"--plan {config.plan} and --compare")


def _refuse_later_work(config: TrainConfig) -> None:
    if config.zero not in (0, 1, 2, 3):
        _fail("--zero 0, 1, 2 or 3", config.zero)
    if config.zero > 0:
        _fail("--zero 0, the only stage that this version trains with", config.zero)
    if config.compile:
        _fail("no --compile, which this version does not train with", "--compile")
    if config.device not in ("auto", "cpu", "sycl"):
        _fail("--device auto, cpu or sycl, the ones that this version trains on", f"'{config.device}'")


def _check_optimizer(config: TrainConfig) -> None:
    if config.optimizer != "onebit-adamw":
        return
    for plan in config.compare or (config.plan,):
        if not is_sign_plan(plan):
            _fail("--optimizer onebit-adamw only with plan sign or sign+ef", f"plan '{plan}'")
