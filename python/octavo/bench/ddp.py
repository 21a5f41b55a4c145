# SPDX-License-Identifier: Apache-2.0
"""Steps of a data-parallel model, by plan: linear layers of `width` x `width`, forward, backward and exchange.

This is the part of one rank; `ddp_jobs` starts the ranks. Every plan takes its turn in every round, as do DDP without
and with torch's fp16 hook, and the same step without communication.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo import _C
from octavo.bench.linked_hosts import UNSHAPED
from octavo.bench.ranks import is_main, join
from octavo.bench.timing import Seconds, ratio, take_turns, typical
from octavo.bench.torch_hooks import FP16, HOOKS
from octavo.train.plan_text import Rounds, split_rounds

ALONE, TORCH = "alone", "torch"  # alone: without communication
WARMUP_ROUNDS = 3
MOST_STEPS_TO_SETTLE = 300
"""Within this number of steps the plan `auto` has chosen."""
NO_ANSWER_S = 30.0
"""After so many seconds a step of one of torch's hooks counts as hanging, or after `PATIENCE` steps of plain DDP where
these take longer."""
PATIENCE = 4


@dataclass(frozen=True)
class Size:
    """The size of the model, and the rows (tokens) per step and rank."""

    rows: int = 4
    layers: int = 24
    width: int = 1024

    @property
    def parameters(self) -> int:
        return self.layers * self.width**2


@dataclass(frozen=True)
class Row:
    """A line of the table; a figure is None where there is none, for example for a hook that raises. Times are those of
    rank 0, whose step ends when it has all ranks' gradients."""

    rows: int
    plan: str
    milliseconds: float | None = None
    of_no_communication: float | None = None  # 1.0: communication costs nothing
    times_faster_than_torch: float | None = None
    wire_bytes: int | None = None  # per step and rank; for torch what a ring sends, unknown for its other hooks
    waiting_ms: float | None = None  # of the hook's thread, per step
    codec_ms: float | None = None
    remark: str = ""
    link: str = UNSHAPED  # between the ranks, where the bench has shaped it


HEADINGS = {
    "link": "link",
    "rows": "rows",
    "plan": "plan",
    "milliseconds": "ms",
    "of_no_communication": "times alone",
    "times_faster_than_torch": "faster than torch",
    "wire_bytes": "MB sent",
    "waiting_ms": "wait ms",
    "codec_ms": "codec ms",
}


def measure_size(plans: Sequence[str], rounds: int, size: Size) -> list[Row]:
    """Measures one size as one rank, and returns its rows."""
    steps: dict[str, _LocalStep] = {ALONE: _LocalStep(size), TORCH: _Step(size), FP16: _Step(size)}
    HOOKS[FP16](steps[FP16].model)
    handles: dict[str, octavo.Handle | octavo.Outer] = {}
    for plan in plans:
        rounds_of_plan, plan_of_rounds = split_rounds(plan)
        if rounds_of_plan:
            steps[plan] = _Rounds(size, rounds_of_plan, plan_of_rounds)
            handles[plan] = steps[plan].outer
        else:
            steps[plan] = _Step(size)
            handles[plan] = octavo.compress(steps[plan].model, plan)
    remarks = {plan: _settle(steps[plan], handle) or _remark(plan) for plan, handle in handles.items()}
    before: dict[str, dict[str, Any]] = {}

    def warm(name: str) -> None:
        if name in handles:
            before[name] = handles[name].stats()

    seconds = _measure(steps, rounds, warm)
    ring = _C.ring_bytes(4 * size.parameters, dist.get_world_size())
    sent_by_torch = {ALONE: 0, TORCH: ring, FP16: ring // 2}
    rows = [_row(size, seconds, name, wire_bytes=sent_by_torch[name]) for name in sent_by_torch]
    return rows + [
        _row(size, seconds, plan, remark=remarks[plan], **_account(before[plan], handle.stats()))
        for plan, handle in handles.items()
    ]


def _remark(plan: str) -> str:
    return f"measured from step {WARMUP_ROUNDS + 1} of its warm-up on" if "+warmup:" in plan else ""


def _settle(step: _LocalStep, handle: octavo.Handle | octavo.Outer) -> str:
    """Makes steps until a plan that chooses has done so. Returns what it chose and why; an empty text for other
    plans."""
    for _ in range(MOST_STEPS_TO_SETTLE):
        choice = handle.stats().get("auto")
        if choice is None or choice["settled"]:
            break
        step.prepare()
        step()
    return "" if choice is None else _reason(choice)


def _reason(choice: dict[str, Any]) -> str:
    """Returns what `auto` chose, and why."""
    buckets = Counter(bucket["plan"] for bucket in choice["buckets"])
    chosen = ", ".join(f"{plan} for {count} of {buckets.total()} buckets" for plan, count in buckets.items())
    tried = [f"{_mix(one['plans'])} {1e3 * one['exchange_s']:.1f} ms" for one in choice["tried"]]
    why = f"an exchange took: {', '.join(tried)}" if tried else "by far the best by the buckets' own figures"
    return f"{chosen}, after {choice['measured_steps']} steps, {choice['measured_s']:.1f} s, of measuring; {why}"


def _mix(plans: Sequence[str]) -> str:
    return plans[0] if len(set(plans)) == 1 else "/".join(plans)


def try_hook(name: str, rounds: int, size: Size, report: Callable[[Row], object]) -> None:
    """Measures one of torch's other hooks as a rank of a job of its own. The job ends with this call, and so does the
    process.

    Rank 0 reports one row: the figures, or what the hook raised, or that a step was not finished in time.
    """

    def end(row: Row) -> None:
        status = 1
        try:
            if is_main():
                report(row)
            else:
                time.sleep(2.0)  # rank 0 reports first: otherwise it would name a peer that has left as the cause
            status = 0
        except OSError as error:
            print(f"[bench.ddp] the row cannot be written: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)  # the hook may have left threads behind that never end

    join()
    try:
        steps: dict[str, _LocalStep] = {ALONE: _LocalStep(size), TORCH: _Step(size)}
        limit_s = max(NO_ANSWER_S, PATIENCE * _seconds_of(steps[TORCH]))
        without_answer = Row(size.rows, name, remark=f"no answer in {limit_s:.0f} s")
        steps[name] = _Watched(size, limit_s, lambda: end(without_answer))
        HOOKS[name](steps[name].model)
        seconds = _measure(steps, rounds)
        end(_row(size, seconds, name))
    except Exception as error:  # whatever a hook raises is reported in its line of the table
        end(Row(size.rows, name, remark=f"raises {_one_line(error)}"))


def _one_line(error: Exception) -> str:
    """Returns the innermost cause: c10d wraps what a hook's callback raises, as text."""
    text = f"{type(error).__name__}: {error}"
    causes = list(re.finditer(r"\w+(Error|Exception): ", text))
    return text[causes[-1].start() :].splitlines()[0].rstrip(": ") if causes else text.splitlines()[0]


def _seconds_of(step: _LocalStep) -> float:
    step.prepare()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _measure(steps: dict[str, _LocalStep], rounds: int, warm: Callable[[str], object] = lambda name: None) -> Seconds:
    """Returns the seconds per step. Calls `warm(name)` before the first turn of a contender that counts."""
    turns: Counter[str] = Counter()

    def before_turn(name: str) -> None:
        if turns[name] == WARMUP_ROUNDS:
            warm(name)
        turns[name] += 1
        steps[name].prepare()
        dist.barrier()

    seconds = take_turns(steps, rounds, warmup=WARMUP_ROUNDS, before=before_turn)
    return {name: [one / steps[name].count for one in taken] for name, taken in seconds.items()}


@contextmanager
def _deadline(seconds: float, then: Callable[[], None]):
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _account(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Returns the bytes sent and the milliseconds of waiting and of coding, per step, between two statistics of a
    handle."""
    stats = {name: after[name] - before[name] for name in after if name != "auto"}
    waiting = stats["wait_up_s"] + stats["wait_down_s"]
    codec = stats["encode_s"] + stats["reduce_s"] + stats["decode_s"]
    return dict(
        wire_bytes=stats["wire_bytes"] // stats["steps"],
        waiting_ms=1e3 * waiting / stats["steps"],
        codec_ms=1e3 * codec / stats["steps"],
    )


def _row(size: Size, seconds: Seconds, name: str, **account: Any) -> Row:
    return Row(
        size.rows,
        name,
        milliseconds=1e3 * typical(seconds, name),
        of_no_communication=ratio(seconds, name, ALONE),
        times_faster_than_torch=ratio(seconds, TORCH, name),
        **account,
    )


class _LocalStep:
    """One step of the model without communication."""

    count = 1  # steps per turn

    def __init__(self, size: Size):
        torch.manual_seed(0)
        layers = [nn.Linear(size.width, size.width, bias=False) for _ in range(size.layers)]
        self.model: nn.Module = nn.Sequential(*layers)
        self.batch = torch.randn(size.rows, size.width)

    def prepare(self) -> None:
        """What a turn needs before it, outside of the time that is measured."""
        self.model.zero_grad(set_to_none=False)

    def __call__(self) -> None:
        self.model(self.batch).square().mean().backward()


class _Step(_LocalStep):
    """The same step under DDP."""

    def __init__(self, size: Size):
        super().__init__(size)
        self.model = DistributedDataParallel(self.model, bucket_cap_mb=25, gradient_as_bucket_view=True)


class _Rounds(_LocalStep):
    """The steps of one round of local steps."""

    def __init__(self, size: Size, rounds: Rounds, plan: str):
        super().__init__(size)
        self.count = rounds.every
        inner = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.outer = octavo.Outer(
            self.model, inner, plan, rounds.every, delay=rounds.delay or 0, fragments=rounds.fragments or 1
        )

    def prepare(self) -> None:
        self.outer.inner.step()  # so that there is something to exchange; other contenders have no optimizer to time
        super().prepare()

    def __call__(self) -> None:
        for _ in range(self.count):
            super().__call__()
            self.outer.count_step()
        self.outer.wait()  # otherwise messages would still be sent in the turns of others


class _Watched(_Step):
    """The same step under DDP. It calls `then` where it is not finished in `limit_s` seconds."""

    def __init__(self, size: Size, limit_s: float, then: Callable[[], None]):
        super().__init__(size)
        self._limit_s, self._then = limit_s, then

    def __call__(self) -> None:
        with _deadline(self._limit_s, self._then):
            super().__call__()
