# SPDX-License-Identifier: Apache-2.0
"""What a rank needs before its first step: data, model, DDP, the compressed wire, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import octavo
from octavo.train import device as devices
from octavo.train import precision
from octavo.train.batches import Batches
from octavo.train.config import TrainConfig
from octavo.train.dataset import Corpus, load_corpus
from octavo.train.model import build_model, model_config
from octavo.train.tokenizer import train_tokenizer
from octavo.train.world import World

ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8


@dataclass(frozen=True)
class Data:
    """The data set of a run and the rows made from it; the same on every rank."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    train: Batches
    held_out: Batches


@dataclass
class Engine:
    """What turns batches into steps: the replica, its wire and its optimizer."""

    model: LlamaForCausalLM
    ddp: DistributedDataParallel
    handle: Any
    optimizer: torch.optim.Optimizer
    precision: str
    device: torch.device

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of a batch, which is moved to the device, with a graph for backward."""
        return _loss(self.ddp, batch, self.precision, self.device)


def load_data(config: TrainConfig, world: World) -> Data:
    """Reads, splits, tokenizes and packs. Raises JobError for bad data, or data that differ by rank."""
    corpus = world.agree(lambda: load_corpus(Path(config.data) if config.data else None, seed=config.seed))
    world.agree(lambda: _check_same_data(corpus, world.from_main(corpus.fingerprint)))
    return world.agree(lambda: _tokenize(config, world, corpus))


def _check_same_data(corpus: Corpus, main_fingerprint: str) -> None:
    if corpus.fingerprint != main_fingerprint:
        raise ValueError(f"[train.setup] expected the data of rank 0, got another content of {corpus.name}")


def _tokenize(config: TrainConfig, world: World, corpus: Corpus) -> Data:
    tokenizer = train_tokenizer(corpus)
    sizes = dict(seq_len=config.seq_len, batch_size=config.batch_size, seed=config.seed)
    train = Batches(corpus.train, tokenizer, grad_accum=config.grad_accum, **sizes)
    if len(train) < world.size:
        raise ValueError(
            f"[train.setup] expected at least a row of data a rank, got {len(train)} for {world.size} ranks"
        )
    return Data(corpus, tokenizer, train, Batches(corpus.held_out, tokenizer, **sizes))


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
    ddp = DistributedDataParallel(model.to(device), process_group=devices.group_for(device, config.timeout_s))
    chosen = kept or _choose_precision(config, world, model)
    if resumed:
        _rehearse(ddp, data, chosen, device)
    optimizer = world.agree(lambda: _build_optimizer(config, model))
    handle = world.agree(lambda: octavo.compress(ddp, config.plan, optimizer=optimizer, timeout_s=config.timeout_s))
    return Engine(model, ddp, handle, optimizer, chosen, device)


def _loss(
    ddp: DistributedDataParallel, batch: dict[str, torch.Tensor], kind: str, device: torch.device
) -> torch.Tensor:
    moved = {name: value.to(device) for name, value in batch.items()}
    with precision.autocast(kind, device):
        return ddp(**moved, use_cache=False).loss


def _choose_precision(config: TrainConfig, world: World, model: LlamaForCausalLM) -> str:
    if config.precision != "auto":
        return config.precision
    return world.from_main(precision.choose(model.config.hidden_size))


def _rehearse(ddp: DistributedDataParallel, data: Data, kind: str, device: torch.device) -> None:
    """One uncompressed pass before a resumed run's first step; its gradients are thrown away.

    DDP sorts its buckets anew after the first backward pass. Without a rehearsal the resumed run would make
    a step with the unsorted buckets where the unbroken run had the sorted ones: sums and blocks would round
    differently.
    """
    forked = [] if device.type == "cpu" else [device.index]
    with torch.random.fork_rng(devices=forked, device_type=device.type):
        loss = _loss(ddp, data.train.batch(0), kind, device)
    loss.backward()
    ddp.zero_grad(set_to_none=True)


def _build_optimizer(config: TrainConfig, model: LlamaForCausalLM) -> torch.optim.Optimizer:
    options = dict(lr=config.lr, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=config.weight_decay)
    if config.optimizer_name == "adamw":
        return torch.optim.AdamW(model.parameters(), **options)
    return octavo.optim.OneBitAdamW(model.parameters(), warmup_steps=config.onebit_warmup_steps, **options)
