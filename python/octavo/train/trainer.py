# SPDX-License-Identifier: Apache-2.0
"""One optimizer step of one rank, and the evaluation that the ranks share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from octavo.train import evaluate
from octavo.train.config import TrainConfig
from octavo.train.data.batches import answer_tokens
from octavo.train.data.training_data import Data
from octavo.train.errors import DIVERGED, JobError
from octavo.train.launch.world import World
from octavo.train.optimizer import optimizer_options
from octavo.train.report.metrics import Totals, finite
from octavo.train.schedule import learning_rate, set_learning_rate
from octavo.train.strategy.base import Sent, Strategy

EVAL_ROWS = 128
EXACT_ITEMS = 128
COMPILING_STEPS = 4
"""In so many steps of a process a model may be compiled: stage 3 of ZeRO measures the third one, and compiles anew."""
MOST_SKIPPED = 20
"""After so many non-finite steps in a row the run has diverged."""


@dataclass
class Trainer:
    """Steps a strategy and keeps the totals. Every method is called by all ranks together."""

    config: TrainConfig
    world: World
    data: Data
    strategy: Strategy
    totals: Totals
    steps_here: int = 0
    """Those that this process has made."""

    def step(self) -> dict[str, Any]:
        """Makes the next step; returns its record for metrics.jsonl. Raises JobError on divergence."""
        start, step, before = time.perf_counter(), self.totals.step + 1, self.strategy.sent()
        late = getattr(self.strategy.optimizer, "frozen", True)  # read before the step: it sends by that phase
        rate = learning_rate(step, self.config.steps, self.config.lr_warmup_steps, self.config.resolved_lr)
        set_learning_rate(self.strategy.optimizer, rate)
        loss = self._backward(step)
        if not self.strategy.steps_alone:  # where ranks step alone, rank 0 reports its own loss
            loss = self.world.mean(loss)
        skipped = not self.strategy.has_finite_gradients()
        norm = None
        if skipped:
            self.strategy.skip_step()
        else:
            norm = self._update(step)
        self.strategy.end_step(is_last=step == self.config.steps)
        record = self._account(step, loss, rate, skipped, late, before, time.perf_counter() - start)
        return record if norm is None else {**record, "grad_norm": finite(norm)}

    def is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated after this step, counted from 1."""
        return step == self.config.steps or step % self.config.eval_every == 0

    def is_saved(self, step: int) -> bool:
        """Whether there is a checkpoint after this step."""
        return step == self.config.steps or step % self.config.checkpoint_every == 0

    def evaluate(self) -> float | None:
        """Returns the mean loss over the held-out rows, or None where it is not finite. Each rank evaluates a share of
        the rows."""
        own = islice(self.data.held_out.in_order(EVAL_ROWS), self.world.rank, None, self.world.size)
        with self.strategy.whole_model():
            total, tokens = _sum(*evaluate.summed_loss(self.strategy.model, own))
        self.totals.eval_loss = finite(total / tokens)
        return self.totals.eval_loss

    def accuracy(self) -> float | None:
        """Returns the share of held-out questions that are answered exactly, or None where the data cannot be
        checked."""
        if not self.data.corpus.checkable:
            return None
        asked = self.data.corpus.held_out[:EXACT_ITEMS][self.world.rank :: self.world.size]
        tokenizer = self.data.tokenizer
        with self.strategy.whole_model():
            mean = evaluate.exact_match(self.strategy.model, tokenizer, asked, EXACT_ITEMS) if asked else 0.0
        right, count = _sum(mean * len(asked), len(asked))
        return right / count

    def _backward(self, step: int) -> float:
        """Runs the forward and backward passes of all micro-batches. Gradients are sent with the last one, in stages 2
        and 3 of ZeRO with each. Returns this rank's part of the loss: the loss is the mean of the parts over ranks.
        Where ranks step alone it returns the loss of the rank's own tokens.

        Every answer token of the step, whichever rank and micro-batch it is in, has the same weight in the gradient:
        it is the average over ranks of what each has summed over its tokens and divided by the mean number of tokens
        per rank.
        """
        parts = self.config.grad_accum
        tokens_per_rank = self.data.train.answer_tokens(step - 1, self.world.size) / self.world.size
        part, own_tokens = 0.0, 0
        for micro in range(parts):
            batch = self.data.train.batch(step - 1, micro, self.world.rank, self.world.size)
            part += self.strategy.backward(batch, tokens_per_rank, is_last=micro + 1 == parts)
            own_tokens += answer_tokens(batch)
        return part * tokens_per_rank / own_tokens if self.strategy.steps_alone else part

    def _update(self, step: int) -> float | None:
        """Makes the optimizer's step. Its factors are the same on all ranks, and so is a divergence. Raises JobError
        then."""
        try:
            return self.strategy.update()
        except RuntimeError as error:
            if "without overflow" not in str(error):  # torch says so where a factor is too large for float32
                raise
            raise JobError(
                f"[train.trainer] the optimizer's step {step} is too large for float32: {DIVERGED}; "
                f"try a smaller --lr, with --fresh or another --out"
            ) from error

    def _account(
        self, step: int, loss: float, rate: float, skipped: bool, late: bool, before: Sent, seconds: float
    ) -> dict[str, Any]:
        """Adds a step to the totals and returns its record. `before`: what had been sent before the step."""
        totals, sent = self.totals, self.strategy.sent()
        wire, dense = sent.wire_bytes - before.wire_bytes, sent.dense_bytes - before.dense_bytes
        tokens = self.config.tokens_per_step(self.world.size)
        compiles = self.config.compile and self.steps_here < COMPILING_STEPS
        self.steps_here += 1
        totals.add_step(step, tokens, seconds, skipped, finite(loss), compiles=compiles)
        totals.add_bytes(wire, dense, late=late)
        self._stop_if_diverged()
        record = dict(step=step, loss=totals.last_loss, lr=rate, tokens_per_s=tokens / seconds, step_s=seconds)
        of_wire = dict(wire_bytes=wire, dense_bytes=dense, wire_bytes_total=totals.wire_bytes)
        return {**record, **optimizer_options(self.config), **of_wire, "skipped": skipped}

    def _stop_if_diverged(self) -> None:
        skipped, step = self.totals.skipped_in_a_row, self.totals.step
        if self.strategy.steps_alone:  # others do not know of it, so ranks ask where they meet anyway
            skipped = max(self.world.gather(skipped)) if self.is_evaluated(step) or self.is_saved(step) else 0
        if skipped >= MOST_SKIPPED:
            raise JobError(
                f"[train.trainer] none of the last {skipped} steps, up to step {step}, had a finite gradient: "
                f"{DIVERGED}; {self.config.divergence_advice}"
            )


def _sum(*values: float) -> list[float]:
    """Returns the sums over ranks, in fp64, the same on all of them."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()
