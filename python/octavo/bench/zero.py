# SPDX-License-Identifier: Apache-2.0
"""Steps of a language model with state, gradients and parameters shared out to ranks: the part of one rank.

For time, all contenders take turns in one set of processes, each with a model of its own. Memory is that of a process
with only one of them. `zero_jobs` starts both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.bench.linked_hosts import UNSHAPED
from octavo.bench.machine import processor
from octavo.bench.ranks import greatest
from octavo.bench.timing import Seconds, ratio, take_turns, typical
from octavo.bench.zero_contenders import DDP, build
from octavo.train.model import build_model, model_config
from octavo.train.model_sizes import SIZES
from octavo.train.report import memory

MODEL = "llama-34m"
"""The default model: 33.7 million parameters."""
VOCABULARY = 8192
BATCH = (2, 128)
"""The rows of a step and rank, and the tokens of a row."""
WARMUP_ROUNDS = 5
"""After so many rounds compiled graphs have their last form."""
MEMORY_STEPS = WARMUP_ROUNDS + 1
BYTES_OF_A_PARAMETER = 16
"""With AdamW in float32: the parameter itself, its gradient, two states."""


@dataclass(frozen=True)
class Row:
    """A line of the table; a figure is None where it was not measured. Times are those of rank 0."""

    contender: str
    parameters: int
    ranks: int
    threads: int  # per rank
    milliseconds: float | None = None  # the median over rounds
    least_ms: float | None = None
    of_ddp: float | None = None  # the median over rounds of the step's time divided by DDP's
    wire_bytes: int | None = None  # sent per rank and step
    peak_bytes: int | None = None  # of the largest rank's process, interpreter included, while it steps
    held_bytes: int | None = None  # parameters, gradients, states and residuals of a rank
    of_share: float | None = None  # held_bytes divided by a W-th of what DDP holds, on W ranks
    loss: float | None = None  # of the last step, on rank 0
    link: str = UNSHAPED


HEADINGS = {
    "link": "link",
    "contender": "contender",
    "milliseconds": "ms",
    "least_ms": "least ms",
    "of_ddp": "times ddp",
    "wire_bytes": "MB sent",
    "peak_bytes": "peak MB",
    "held_bytes": "held MB",
    "of_share": "times dense/W",
    "loss": "loss",
}


def title(model: str, row: Row) -> str:
    tokens = f"{BATCH[0]} x {BATCH[1]} tokens a rank"
    ranks = f"{row.ranks} ranks, {row.threads} thread{'s' if row.threads > 1 else ''} each"
    return f"a step of {model}, {row.parameters / 1e6:.1f} M parameters, AdamW; {tokens}; {ranks}; {processor()}"


def measure_time(contenders: Sequence[str], rounds: int, model: str) -> list[Row]:
    """Measures time as one rank, and returns the rows."""
    make, tokens = _ModelMaker(model), _tokens()
    steps = {name: build(name, make(), tokens) for name in dict.fromkeys((DDP, *contenders))}
    losses: dict[str, float] = {}
    sent: dict[str, list[int | None]] = {name: [] for name in steps}  # bytes before each of its turns

    def run(name: str) -> Callable[[], None]:
        def one() -> None:
            losses[name] = steps[name]()

        return one

    def before_turn(name: str) -> None:
        sent[name].append(steps[name].wire_bytes())
        dist.barrier()

    seconds = take_turns({name: run(name) for name in steps}, rounds, WARMUP_ROUNDS, before_turn)
    return [
        _row(name, make, seconds, losses[name], _per_step(sent[name][WARMUP_ROUNDS], step.wire_bytes(), rounds))
        for name, step in steps.items()
    ]


def measure_memory(contender: str, model: str) -> Row:
    """Measures as one rank the memory of one contender, which should be alone in its process."""
    make = _ModelMaker(model)
    step = build(contender, make(), _tokens())
    memory.reset_peak()
    for _ in range(MEMORY_STEPS - 1):
        step()
    loss = step.backward()
    (held,) = greatest([step.held_bytes()])
    step.update()
    (peak,) = greatest([memory.peak_host_bytes()])
    share = BYTES_OF_A_PARAMETER * make.parameters / dist.get_world_size()
    return Row(
        contender,
        make.parameters,
        dist.get_world_size(),
        torch.get_num_threads(),
        peak_bytes=peak,
        held_bytes=held,
        of_share=held / share,
        loss=loss,
    )


class _ModelMaker:
    """Makes the model, with the same bits each time and on all ranks."""

    def __init__(self, name: str):
        self._config = config_of(name)
        self.parameters = sum(p.numel() for p in self().parameters())

    def __call__(self) -> LlamaForCausalLM:
        return build_model(self._config, seed=0)


def config_of(name: str) -> LlamaConfig:
    """Returns the configuration of a model. Raises ValueError for one that is neither `octavo train`'s nor this bench's
    own."""
    if name == MODEL:
        shape = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=16)
        return LlamaConfig(**shape, vocab_size=VOCABULARY, max_position_embeddings=512)
    if name not in SIZES and not name.endswith(".json"):
        raise ValueError(f"[bench.zero] --model must be {MODEL}, {', '.join(SIZES)} or a CONFIG.json, not '{name}'")
    return model_config(name, VOCABULARY, BATCH[1])


def _tokens() -> torch.Tensor:
    """Returns random tokens, other ones on each rank."""
    torch.manual_seed(1 + dist.get_rank())
    return torch.randint(0, VOCABULARY, BATCH)


def _row(name: str, make: _ModelMaker, seconds: Seconds, loss: float, wire_bytes: int | None) -> Row:
    return Row(
        name,
        make.parameters,
        dist.get_world_size(),
        torch.get_num_threads(),
        milliseconds=1e3 * typical(seconds, name),
        least_ms=1e3 * min(seconds[name]),
        of_ddp=ratio(seconds, name, DDP),
        wire_bytes=wire_bytes,
        loss=loss,
    )


def _per_step(before: int | None, after: int | None, rounds: int) -> int | None:
    return None if before is None or after is None else (after - before) // rounds
