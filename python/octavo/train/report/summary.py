# SPDX-License-Identifier: Apache-2.0
"""`summary.json`: the options and the results of a finished run."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

import octavo
from octavo.durable_files import printable
from octavo.train import devices
from octavo.train.config import TrainConfig
from octavo.train.errors import JobError
from octavo.train.launch.world import World
from octavo.train.optimizer import optimizer_options
from octavo.train.report import memory
from octavo.train.report.metrics import Totals, compression_ratio
from octavo.train.trainer import Trainer


def conditions(config: TrainConfig, world: World, totals: Totals) -> dict[str, Any]:
    """Returns what the summary of a run that goes on from `totals` will say of what the runs of a comparison must have
    in common; `precision` is None where the run chooses it."""
    steps_left = config.steps - totals.step
    return {
        "tokens": totals.tokens + steps_left * config.tokens_per_step(world.size),
        "schedules": totals.schedules_until(config.steps),
        "zero_stage": config.zero,
        "compile": config.compile,
        "device": world.from_main(devices.choose(config.device).type),
        "precision": None if config.precision == "auto" else config.precision,
    }


def summarize(trainer: Trainer, accuracy: float | None) -> dict[str, Any]:
    """Returns the options and figures of a run after its last step. All ranks call it together.

    Skipped steps are those of the rank that has skipped most: with local steps each rank skips steps of its own,
    otherwise all skip the same ones. Bytes are those that rank 0 handed to c10d for gradients and, with ZeRO, for
    parameters. `dense_…` are the bytes that fp32 gradients would have had, with ZeRO those of DDP. Rates are those of
    the whole job. State bytes are those of rank 0, with ZeRO those of its share. `peak_host_bytes`, `peak_device_bytes`
    and `peak_managed_bytes` are those of the rank with the most. `peak_device_bytes` is 0 where the CPU is the device,
    and leaves out managed memory.
    """
    config, strategy, totals, world = trainer.config, trainer.strategy, trainer.totals, trainer.world
    parameters = sum(p.numel() for p in strategy.model.parameters())
    optimizer_bytes, wire_bytes = strategy.state_bytes()
    return {
        "plan": config.resolved_plan,
        "optimizer": config.optimizer_name,
        "outer": config.outer,
        **strategy.options(),
        "zero_stage": config.zero,
        "compile": config.compile,
        "device": strategy.device.type,
        "precision": strategy.precision,
        "world_size": world.size,
        "model": printable(config.model),
        "data": trainer.data.corpus.name,
        "seed": config.seed,
        "lr": config.resolved_lr,
        **optimizer_options(config),
        "parameters": parameters,
        "steps": totals.step,
        "schedules": totals.schedules,
        "skipped_steps": max(world.gather(totals.skipped_steps)),
        "first_loss": totals.first_loss,
        "final_loss": totals.last_loss,
        "eval_loss": totals.eval_loss,
        "accuracy": accuracy,
        "tokens": totals.tokens,
        "train_seconds": totals.seconds,
        "tokens_per_s": totals.tokens / totals.step / totals.step_s,
        "step_s": totals.step_s,
        "wire_bytes_per_step": totals.wire_bytes / totals.step,
        "dense_bytes_per_step": totals.dense_bytes / totals.step,
        "compression_ratio": compression_ratio(totals.dense_bytes, totals.wire_bytes),
        "compression_ratio_after_warmup": _late_ratio(totals),
        "peak_device_bytes": max(world.gather(devices.peak_bytes(strategy.device))),
        "peak_managed_bytes": max(world.gather(memory.peak_managed_bytes())),
        "peak_host_bytes": max(world.gather(memory.peak_host_bytes())),
        "state_bytes_per_param": optimizer_bytes / parameters,
        "wire_state_bytes_per_param": wire_bytes / parameters,
        "replicas_sha256": check_replicas(trainer),
        "octavo": octavo.__version__,
        "torch": torch.__version__,
    }


def check_replicas(trainer: Trainer) -> str:
    """Returns the SHA-256 of the parameters, which all ranks have alike. Raises JobError where a rank's bits differ
    from rank 0's."""
    digest = hashlib.sha256()
    for parameter in trainer.strategy.common_parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy())
    digests = trainer.world.gather(digest.hexdigest())
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise JobError(f"[train.summary] the parameters on rank {rank} differ from those on rank 0")
    return digests[0]


def _late_ratio(totals: Totals) -> float | None:
    """Returns the compression ratio of the steps after the optimizer's warm-up; None where there was none."""
    if totals.dense_bytes and not totals.late_dense_bytes:
        return None
    return compression_ratio(totals.late_dense_bytes, totals.late_wire_bytes)
