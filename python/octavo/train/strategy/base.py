# SPDX-License-Identifier: Apache-2.0
"""The interface between the training loop and the way in which ranks work together."""

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
from octavo.train.devices import compiler_for
from octavo.train.launch.world import World
from octavo.train.strategy.precision import autocast

State = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """The bytes that this rank has handed to c10d so far, and the bytes that dense gradients in float32 would have
    had."""

    wire_bytes: int
    dense_bytes: int


@dataclass
class Strategy(ABC):
    """Turns batches into steps. All ranks call its methods together and in the same order, except for the methods of a
    step where each rank steps alone."""

    config: TrainConfig
    world: World
    model: LlamaForCausalLM
    precision: str
    device: torch.device

    #: Whether each rank steps by itself, without the others' knowledge.
    steps_alone = False

    optimizer: Any  # has param_groups; a torch.optim.Optimizer, except for muon
    handle: Any  # has stats() of the exchange

    # ---- a step

    @abstractmethod
    def backward(self, batch: dict[str, Tensor], tokens: float, is_last: bool) -> float:
        """Runs the forward and backward passes of a micro-batch. Returns the losses of its answer tokens, summed and
        divided by `tokens`. After a step's last micro-batch its gradients are there, averaged over ranks unless ranks
        step alone."""

    @abstractmethod
    def has_finite_gradients(self) -> bool:
        """Whether all gradients are finite. The answer is the same on all ranks, unless they step alone."""

    @abstractmethod
    def update(self) -> float | None:
        """Clips the gradients where asked to, and makes the optimizer's step. Returns the norm before clipping."""

    @abstractmethod
    def skip_step(self) -> None:
        """Is called in place of `update` in a step that is not made."""

    @abstractmethod
    def end_step(self, is_last: bool) -> None:
        """Is called after `update` or `skip_step`, and forgets the gradients. `is_last`: this is the last step of the
        run, after which all ranks have the same model."""

    @abstractmethod
    def sent(self) -> Sent: ...

    # ---- the model

    def whole_model(self) -> AbstractContextManager[None]:
        """Returns a context in which the parameters of `model` are whole, and the same on all ranks. Reading them there
        does not change what is trained."""
        return nullcontext()

    @abstractmethod
    def common_parameters(self) -> Iterator[Tensor]:
        """Yields the parameters that `whole_model` shows, one after another. No more than one needs to be whole at a
        time."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Writes, on rank 0, the files by which transformers opens a model. Raises OSError there, or on all ranks."""

    # ---- state

    @abstractmethod
    def shared_state(self) -> State:
        """Returns the part of the saved state that all ranks have alike, besides the model."""

    @abstractmethod
    def own_state(self) -> State:
        """Returns the part of the saved state that only this rank has."""

    def needs_all_ranks(self, common: State) -> bool:
        """Whether `load` needs the states of all ranks even where as many ranks saved them as there are now."""
        return False

    @abstractmethod
    def load(self, common: State, own: State | Iterable[State]) -> str | None:
        """Takes back both states. `own`: this rank's, or one after another the states of all ranks that saved. Returns
        a sentence about what was lost, if anything was."""

    @abstractmethod
    def state_bytes(self) -> tuple[int, int]:
        """Returns the bytes on this rank of the optimizer's state, and of what the exchange keeps from step to step, as
        it is saved: in memory each residual is kept twice."""

    def options(self) -> dict[str, Any]:
        """Returns what summary.json says of the strategy besides the options of the run."""
        return {}


def forward_of(module: torch.nn.Module, is_compiled: bool, device: torch.device) -> Any:
    """Returns the callable for the forward passes of training: `module`, or its compiled form, which has the same
    parameters."""
    return torch.compile(module, backend=compiler_for(device)) if is_compiled else module


def loss_of(forward: Any, batch: dict[str, Tensor], tokens: float, precision: str, device: torch.device) -> Tensor:
    """Returns the losses of the batch's answer tokens, summed and divided by `tokens`, with a graph for backward."""
    moved = {name: value.to(device) for name, value in batch.items()}
    # a tensor, because graphs would be compiled again for each new Python number
    divisor = torch.tensor(tokens, dtype=torch.float32, device=device)
    with autocast(precision, device):
        return forward(**moved, use_cache=False, num_items_in_batch=divisor).loss
