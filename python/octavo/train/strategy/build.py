# SPDX-License-Identifier: Apache-2.0
"""Builds the model of a run, and the strategy that trains it, from the options."""

from __future__ import annotations

from transformers import LlamaForCausalLM

from octavo.train import devices
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data
from octavo.train.launch.world import World
from octavo.train.model import build_model, model_config
from octavo.train.strategy.base import Strategy
from octavo.train.strategy.ddp import DdpStrategy
from octavo.train.strategy.outer import OuterStrategy
from octavo.train.strategy.precision import choose_precision
from octavo.train.strategy.zero import ZeroStrategy


def build_replica(config: TrainConfig, data: Data) -> LlamaForCausalLM:
    """Returns the untrained model, the same bits on every rank. Raises ValueError for a bad CONFIG.json."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {name: getattr(data.tokenizer, name) for name in names}
    return build_model(model_config(config.model, len(data.tokenizer), config.seq_len, **ids), config.seed)


def build_strategy(
    config: TrainConfig, world: World, data: Data, model: LlamaForCausalLM, kept: str | None, *, resumed: bool
) -> Strategy:
    """Returns the strategy that trains `model`. All ranks get rank 0's bits of the model. `kept`: the precision that
    this run chose before, or None.

    Raises JobError, in the strategy's words, for what it refuses.
    """
    device = world.agree(lambda: devices.choose(config.device))
    devices.reset_peak(device)
    group = devices.group_for(device, world, config.timeout_s)
    precision = kept or choose_precision(config, world, device, model.config.hidden_size)
    model = model.to(device)
    if config.zero:
        return ZeroStrategy(config, world, model, precision, group)
    if config.outer:
        return OuterStrategy(config, world, model, precision, group)
    return DdpStrategy(config, world, model, precision, group, data if resumed else None)
