# SPDX-License-Identifier: Apache-2.0
"""What a rank trains with: the model, its precision, DDP, the compressed wire and the optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM

import octavo
from octavo.train import device as devices
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data
from octavo.train.launch.world import World
from octavo.train.model import build_model, model_config
from octavo.train.optimizer import build_optimizer
from octavo.train.report.memory import tensor_bytes

BF16_WIDTH = 256
"""From this hidden size on bf16 pays on a CPU that multiplies it in hardware.

A rule rather than a stopwatch, so that equal runs choose alike. Measured on a Xeon with AMX, one thread, forward and
backward of 8 x 128 tokens: at width 128 autocast costs 10 % (its casts outweigh the small products), at width 384 it
saves 40 %.
"""


@dataclass
class Engine:
    """What turns batches into steps: the replica, its wire and its optimizer. Ranks exchange gradients in each step."""

    model: LlamaForCausalLM
    forward: nn.Module  # the model as it is called
    handle: Any
    optimizer: torch.optim.Optimizer
    precision: str
    device: torch.device

    #: Whether a rank's step is a matter of its own, of which the others do not hear.
    steps_alone = False

    def loss(self, batch: dict[str, torch.Tensor], tokens: float) -> torch.Tensor:
        """The losses of the batch's answer tokens, summed and divided by `tokens`, with a graph for backward."""
        return _loss(self.forward, batch, tokens, self.precision, self.device)

    def accumulating(self) -> AbstractContextManager[None]:
        """Inside, a backward pass sends nothing."""
        return self.forward.no_sync()

    def skip_step(self) -> None:
        """In the place of the optimizer's step."""

    def common_parameters(self) -> AbstractContextManager[None]:
        """Inside, the model's parameters are those that all ranks have alike."""
        return nullcontext()

    def common_state(self) -> Any:
        """Of what is saved besides the model, that which all ranks have alike."""
        return self.optimizer.state_dict()

    def own_state(self) -> Any:
        """What this rank alone has."""
        return self.handle.state_dict()

    def load(self, common: Any, own: Any | list[Any]) -> None:
        """Takes back both; `own`: this rank's, or those of all ranks of another world."""
        self.handle.load_state_dict(own)
        self.optimizer.load_state_dict(common)

    def outer_options(self) -> dict[str, Any]:
        """Of local steps, what the options have resolved to."""
        return {}

    def state_bytes(self) -> tuple[int, int]:
        """Of the optimizer's state, and of what the exchange remembers."""
        return tensor_bytes(self.optimizer.state_dict()), tensor_bytes(self.handle.state_dict())


class OuterEngine(Engine):
    """That of local steps: handle and optimizer are the same octavo.Outer."""

    steps_alone = True

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def skip_step(self) -> None:
        self.optimizer.count_step()

    def common_parameters(self) -> AbstractContextManager[None]:
        return self.optimizer.at_anchor()

    def common_state(self) -> Any:
        return self.optimizer.shared_state()

    def own_state(self) -> Any:
        return self.optimizer.own_state()

    def load(self, common: Any, own: Any | list[Any]) -> None:
        each = own if isinstance(own, list) else [own]
        states = [{**state, "shared": common} for state in each]
        self.optimizer.load_state_dict(states if isinstance(own, list) else states[0])

    def outer_options(self) -> dict[str, Any]:
        return {f"outer_{name}": getattr(self.optimizer, name) for name in ("delay", "fragments", "lr", "momentum")}

    def state_bytes(self) -> tuple[int, int]:
        inner = tensor_bytes(self.optimizer.inner.state_dict())
        return inner, tensor_bytes(self.optimizer.state_dict()) - inner


def build_replica(config: TrainConfig, data: Data) -> LlamaForCausalLM:
    """The untrained model, the same bits on every rank. Raises ValueError for a bad CONFIG.json."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {name: getattr(data.tokenizer, name) for name in names}
    return build_model(model_config(config.model, len(data.tokenizer), config.seq_len, **ids), config.seed)


def build_engine(
    config: TrainConfig, world: World, data: Data, model: LlamaForCausalLM, kept: str | None, *, resumed: bool
) -> Engine:
    """Wraps `model`, whose rank-0 bits go to all ranks. `kept`: the precision that this run chose before.

    Raises JobError for an unknown plan, in the words of the plan's parser.
    """
    device = world.agree(lambda: devices.choose(config.device))
    devices.reset_peak(device)
    group = devices.group_for(device, config.timeout_s)
    if config.outer:
        return _build_outer_engine(config, world, model.to(device), kept, group)
    ddp = DistributedDataParallel(model.to(device), process_group=group)
    chosen = kept or _choose_precision(config, world, model)
    if resumed:
        _rehearse(ddp, data, chosen, device)
    optimizer = world.agree(lambda: build_optimizer(config, model))
    joined = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    options = dict(is_paged=config.is_paged, seed=config.seed, timeout_s=config.timeout_s)
    handle = world.agree(lambda: octavo.compress(ddp, _plan(config), optimizer=joined, **options))
    return Engine(model, ddp, handle, optimizer, chosen, device)


def _build_outer_engine(
    config: TrainConfig, world: World, model: LlamaForCausalLM, kept: str | None, group: dist.ProcessGroup | None
) -> Engine:
    inner = world.agree(lambda: build_optimizer(config, model))
    outer = world.agree(
        lambda: octavo.Outer(
            model,
            inner,
            config.resolved_plan,
            config.outer,
            config.outer_delay,
            fragments=config.outer_fragments,
            lr=config.outer_lr,
            momentum=config.outer_momentum,
            group=group,
            seed=config.seed,
            timeout_s=config.timeout_s,
        )
    )
    chosen = kept or _choose_precision(config, world, model)
    return OuterEngine(model, model, outer, outer, chosen, next(model.parameters()).device)


def _plan(config: TrainConfig) -> octavo.Plan:
    """``--plan``, with ``--beta1`` as its momentum where it keeps one and the option is given."""
    plan = octavo.Plan(config.resolved_plan)
    return plan if plan.momentum is None or config.beta1 is None else plan.with_momentum(config.beta1)


def _loss(
    forward: nn.Module, batch: dict[str, torch.Tensor], tokens: float, kind: str, device: torch.device
) -> torch.Tensor:
    moved = {name: value.to(device) for name, value in batch.items()}
    with _autocast(kind, device):
        return forward(**moved, use_cache=False, num_items_in_batch=tokens).loss


def _choose_precision(config: TrainConfig, world: World, model: LlamaForCausalLM) -> str:
    if config.precision != "auto":
        return config.precision
    return world.from_main(_faster_precision(model.config.hidden_size))


def _rehearse(ddp: DistributedDataParallel, data: Data, kind: str, device: torch.device) -> None:
    """One uncompressed pass before a resumed run's first step; its gradients are thrown away.

    DDP sorts its buckets anew after the first backward pass. Without a rehearsal the resumed run would make
    a step with the unsorted buckets where the unbroken run had the sorted ones: sums and blocks would round
    differently.
    """
    forked = [] if device.type == "cpu" else [device.index]
    with torch.random.fork_rng(devices=forked, device_type=device.type):
        loss = _loss(ddp, data.train.batch(0), 1.0, kind, device)
    loss.backward()
    ddp.zero_grad(set_to_none=True)


def _autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The context of the forward pass: bf16 where chosen, plain fp32 otherwise."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def _faster_precision(hidden_size: int) -> str:
    """The faster precision on this CPU for a model of that width."""
    return "bf16" if hidden_size >= BF16_WIDTH and _has_bf16_units() else "fp32"


def _has_bf16_units() -> bool:
    """Whether this CPU multiplies bf16 in hardware; a torch that cannot tell counts as no."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
