# SPDX-License-Identifier: Apache-2.0
"""What the training loop asks of the way in which ranks work together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from octavo.train.config import TrainConfig
from octavo.train.engine.precision import autocast
from octavo.train.launch.world import World

State = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """Bytes that this rank has handed to c10d so far, and what dense gradients in float32 would have been."""

    wire_bytes: int
    dense_bytes: int


@dataclass
class Engine(ABC):
    """What turns batches into steps. Methods are called by all ranks together, in the same order, but where a step is a
    rank's own matter."""

    config: TrainConfig
    world: World
    model: LlamaForCausalLM
    precision: str
    device: torch.device

    #: Whether a rank's step is a matter of its own, of which the others do not hear.
    steps_alone = False

    optimizer: Any  # has param_groups; a class of torch's, but for muon
    handle: Any  # has stats() of the exchange

    # ---- a step

    @abstractmethod
    def backward(self, batch: dict[str, Tensor], tokens: float, is_last: bool) -> float:
        """Forward and backward of a micro-batch. Returns its answer tokens' losses, summed and divided by `tokens`. The
        gradients of a step are there after its last one, averaged over ranks unless steps are alone."""

    @abstractmethod
    def has_finite_gradients(self) -> bool:
        """The same on all ranks, unless steps are alone."""

    @abstractmethod
    def update(self) -> float | None:
        """Clips the gradients where asked to, and makes the optimizer's step. Returns the norm before clipping."""

    @abstractmethod
    def skip_step(self) -> None:
        """In the place of `update`."""

    @abstractmethod
    def end_step(self, is_last: bool) -> None:
        """After one of both: forgets the gradients. `is_last`: of the run, after which ranks have one model."""

    @abstractmethod
    def sent(self) -> Sent: ...

    # ---- the model

    def whole_model(self) -> AbstractContextManager[None]:
        """Inside, the parameters of `model` are whole, and those that all ranks have alike. To look at them leaves no
        trace in what is trained."""
        return nullcontext()

    @abstractmethod
    def common_parameters(self) -> Iterator[Tensor]:
        """What is inside, one parameter after another: no more than one needs to be whole."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Rank 0 writes the files by which transformers opens a model. Raises OSError there, or on all ranks."""

    # ---- state

    @abstractmethod
    def common_state(self) -> State:
        """Of what is saved besides the model, that which all ranks have alike."""

    @abstractmethod
    def own_state(self) -> State:
        """What this rank alone has."""

    def needs_all_ranks(self, common: State) -> bool:
        """Whether `load` needs the states of all ranks, be they as many as these."""
        return False

    @abstractmethod
    def load(self, common: State, own: State | Iterable[State]) -> str | None:
        """Takes back both; `own`: this rank's, or one after another those of all ranks that saved. Returns a sentence
        on what was lost, if anything was."""

    @abstractmethod
    def state_bytes(self) -> tuple[int, int]:
        """On this rank: of the optimizer's state, and of what the exchange remembers."""

    def options(self) -> dict[str, Any]:
        """What is said of the engine in summary.json besides the options of the run."""
        return {}


def loss_of(forward: Any, batch: dict[str, Tensor], tokens: float, precision: str, device: torch.device) -> Tensor:
    """The losses of the batch's answer tokens, summed and divided by `tokens`, with a graph for backward."""
    moved = {name: value.to(device) for name, value in batch.items()}
    with autocast(precision, device):
        return forward(**moved, use_cache=False, num_items_in_batch=tokens).loss
