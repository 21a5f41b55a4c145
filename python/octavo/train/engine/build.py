# SPDX-License-Identifier: Apache-2.0
"""Builds the model of a run, and the engine that trains it, from the options."""

from __future__ import annotations

from transformers import LlamaForCausalLM

from octavo.train import device as devices
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data
from octavo.train.engine.base import Engine
from octavo.train.engine.ddp import DdpEngine
from octavo.train.engine.outer import OuterEngine
from octavo.train.engine.precision import choose_precision
from octavo.train.engine.zero import ZeroEngine
from octavo.train.launch.world import World
from octavo.train.model import build_model, model_config


def build_replica(config: TrainConfig, data: Data) -> LlamaForCausalLM:
    """Returns the untrained model, the same bits on every rank. Raises ValueError for a bad CONFIG.json."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {name: getattr(data.tokenizer, name) for name in names}
    return build_model(model_config(config.model, len(data.tokenizer), config.seq_len, **ids), config.seed)


def build_engine(
    config: TrainConfig, world: World, data: Data, model: LlamaForCausalLM, kept: str | None, *, resumed: bool
) -> Engine:
    """Returns the engine that trains `model`. All ranks get rank 0's bits of the model. `kept`: the precision that this
    run chose before, or None.

    Raises JobError, in the engine's words, for what an engine refuses.
    """
    device = world.agree(lambda: devices.choose(config.device))
    devices.reset_peak(device)
    group = devices.group_for(device, config.timeout_s)
    precision = kept or choose_precision(config, world, model.config.hidden_size)
    model = model.to(device)
    if config.zero:
        return ZeroEngine(config, world, model, precision, group)
    if config.outer:
        return OuterEngine(config, world, model, precision, group)
    return DdpEngine(config, world, model, precision, group, data if resumed else None)
