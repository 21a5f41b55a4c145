# SPDX-License-Identifier: Apache-2.0
"""What the tests of `octavo train` share: a tiny data set and model, a world of one rank, and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from patience import PATIENCE

from octavo.train.config import TrainConfig
from octavo.train.launch.world import World

TIMINGS = ("tokens_per_s", "step_s")
NANO = dict(
    model_type="llama",
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """Writes a data set of 60 sums and the config of a model of 30 thousand parameters. Returns the two paths."""
    data, model = folder / "sums.jsonl", folder / "nano.json"
    records = [
        dict(instruction=f"Add, number {i}.", input=f"{i % 7} {i % 5}", output=str(i % 7 + i % 5)) for i in range(60)
    ]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    model.write_text(json.dumps(NANO))
    return data, model


def write_uneven_rows(data: Path) -> None:
    """Writes a data set of records that fill a row each: some have a long question, some have a long answer."""
    many = " ab" * 40
    records = [
        dict(instruction=f"Say {i}.{many if i % 2 else ''}", output=f"{i}{'' if i % 2 else many}") for i in range(80)
    ]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))


def nano_config(folder: Path, **changes: Any) -> TrainConfig:
    """Returns the config of eight quick steps of the nano model, into `folder`/out."""
    data, model = write_inputs(folder)
    options: dict[str, Any] = dict(
        data=str(data), model=str(model), out=str(folder / "out"), steps=8, batch_size=2, seq_len=32
    )
    options |= dict(eval_every=4, checkpoint_every=2, timeout_s=60.0)
    return TrainConfig(**{**options, **changes})


@contextlib.contextmanager
def solo_world() -> Iterator[World]:
    """Yields a world of only this process, in a process group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World(0, 1)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Makes the system refuse to write more than `size` bytes to a file of this process, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Returns a function that takes any arguments and raises the error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def run_as_rank(rank: int, config: TrainConfig) -> dict[str, Any]:
    """Runs a job as one rank of a pool, in a world of `config.nproc`. Returns its summary."""
    from octavo.train.job import run_job  # imports transformers, which most users of this module do not need

    return run_job(config, World(rank, config.nproc), None)


def read_curve(out: Path) -> list[dict[str, Any]]:
    """Returns the records of metrics.jsonl without what depends on the clock."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]


def clean_environment(**changes: str) -> dict[str, str]:
    """Returns this environment without the variables that would make a process a rank."""
    ours = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OCTAVO_PARENT_STORE",
    )
    return {**{name: value for name, value in os.environ.items() if name not in ours}, **changes}


def train_command(config: TrainConfig) -> list[str]:
    """Returns the command line of `config`."""
    return [sys.executable, "-m", "octavo", "train", *config.to_args()]


def run_octavo(*arguments: str, timeout_s: float = 90, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `octavo …` to its end and captures its output. `timeout_s`: seconds of two quiet cores (patience.py)."""
    command = [sys.executable, "-m", "octavo", *arguments]
    env = clean_environment(**environment)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE * timeout_s, check=False)
