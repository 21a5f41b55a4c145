# SPDX-License-Identifier: Apache-2.0
"""The data set of a run as every rank holds it: split, tokenized and packed into rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from octavo.train.config import TrainConfig
from octavo.train.data.batches import Batches
from octavo.train.data.dataset import Corpus, load_corpus
from octavo.train.data.tokenizer import train_tokenizer
from octavo.train.launch.world import World


@dataclass(frozen=True)
class Data:
    """The data set of a run and the rows made from it; the same on every rank."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerFast
    train: Batches
    held_out: Batches


def load_data(config: TrainConfig, world: World) -> Data:
    """Reads, splits, tokenizes and packs the data set. Raises JobError for bad data, and for data or options that are
    not the same on all ranks."""
    world.agree(lambda: _check_same_options(config, world.from_main(dataclasses.asdict(config)), world.rank))
    corpus = world.agree(lambda: load_corpus(None if config.data is None else Path(config.data), seed=config.seed))
    world.agree(lambda: _check_same_data(corpus, world.from_main(corpus.fingerprint)))
    return world.agree(lambda: _tokenize(config, world, corpus))


def _check_same_options(config: TrainConfig, of_main: dict[str, Any], rank: int) -> None:
    """Raises ValueError where torchrun has started this rank with another option than rank 0, by which they would train
    something else, or wait for one another."""
    for field in dataclasses.fields(config):
        name, ours = field.name, getattr(config, field.name)
        is_path = name == "model" and str(ours).endswith(".json")
        if not field.metadata["of_a_host"] and not is_path and ours != of_main[name]:
            raise ValueError(
                f"[train.training_data] --{name.replace('_', '-')} is {ours} on rank {rank} and {of_main[name]} on "
                f"rank 0: start all ranks with the same options"
            )


def _check_same_data(corpus: Corpus, main_fingerprint: str) -> None:
    if corpus.fingerprint != main_fingerprint:
        raise ValueError(f"[train.training_data] the content of {corpus.name} differs from that on rank 0")


def _tokenize(config: TrainConfig, world: World, corpus: Corpus) -> Data:
    tokenizer = train_tokenizer(corpus)
    sizes = dict(seq_len=config.seq_len, batch_size=config.batch_size, seed=config.seed)
    train = Batches(corpus.train, tokenizer, grad_accum=config.grad_accum, **sizes)
    if len(train) < world.size:
        raise ValueError(
            f"[train.training_data] the data fill only {len(train)} rows, fewer than the {world.size} ranks: use fewer "
            f"ranks, a smaller --seq-len or more data"
        )
    return Data(corpus, tokenizer, train, Batches(corpus.held_out, tokenizer, **sizes))
