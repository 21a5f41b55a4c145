# SPDX-License-Identifier: Apache-2.0
"""Kills all ranks of a job, starts it again, and compares its curve with an unbroken one; run as a script.

Everything is imported once and the ranks are forked: a kill costs tenths of a second, not the seconds that
importing takes, and its moment falls where a job does its work.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import random
import signal
import struct
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401  rank 0 imports it where it draws
import torch
import torch._dynamo  # torch imports it at the first step of an optimizer
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from train_runs import nano_config, read_curve

from octavo.train.config import TrainConfig
from octavo.train.launch.rank_main import run_rank
from octavo.train.launch.world import PARENT_STORE
from octavo.train.trainer import Trainer

PORT = struct.Struct("H")


def run_ranks(config: TrainConfig, kill_after_s: float | None = None) -> list[int]:
    """Forks the ranks of a job, kills them after some seconds where asked to; returns how they ended.

    The store that they meet at comes after the last fork and goes with the last rank: its thread looks up the names
    of those who connect, and a child forked meanwhile would wait for ever for the lock of libc's resolver.
    """
    reader, writer = os.pipe()
    pids = [fork_rank(rank, config, reader, writer) for rank in range(config.nproc)]
    store = dist.TCPStore("127.0.0.1", 0, config.nproc, True, timedelta(seconds=60), wait_for_workers=False)
    os.write(writer, PORT.pack(store.port) * config.nproc)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(reader)
    os.close(writer)
    return codes


def fork_rank(rank: int, config: TrainConfig, reader: int, writer: int) -> int:
    """Starts a rank, which reads the store's port from the pipe; returns its process id."""
    pid = os.fork()
    if pid == 0:
        os.close(writer)  # so that the pipe ends with the parent
        (port,) = PORT.unpack(os.read(reader, PORT.size))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), PARENT_STORE: "1"}
        os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(config.nproc))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        run_rank(config)
    return pid


def run_whole(config: TrainConfig) -> float:
    """Runs a job to its end; returns the seconds it took. Raises RuntimeError where a rank failed."""
    start = time.monotonic()
    codes = run_ranks(config)
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}")
    return time.monotonic() - start


def check_curve(victim: TrainConfig, golden: TrainConfig) -> None:
    """Raises RuntimeError where a run that was killed has another curve than the one that was not."""
    if read_curve(Path(victim.out)) != read_curve(Path(golden.out)):
        raise RuntimeError(f"the curve of {victim.out} differs from that of {golden.out}")


def kill_at_random(golden: TrainConfig, whole_s: float, kills: int) -> None:
    """Compares runs that were killed, `kills` times in all, with the golden one that took `whole_s`."""
    moments, hits, runs = random.Random(1), 0, 0
    while hits < kills:
        victim = dataclasses.replace(golden, out=f"{golden.out}-victim-{runs}")
        if -signal.SIGKILL in run_ranks(victim, kill_after_s=moments.uniform(0.1, 1.0) * whole_s):
            hits += 1
        else:  # it came to its end in time: the next victim begins anew
            check_curve(victim, golden)
            runs += 1
            whole_s *= 0.8  # the golden run was slower, on a machine that had more to do
    victim = dataclasses.replace(golden, out=f"{golden.out}-victim-{runs}")
    run_whole(victim)
    check_curve(victim, golden)


def kill_after(golden: TrainConfig, last: int) -> None:
    """Compares a run whose ranks died after step `last` with the golden one."""
    victim, real = dataclasses.replace(golden, out=f"{golden.out}-victim"), Trainer.step

    def step(trainer: Trainer) -> dict[str, Any]:
        if trainer.totals.step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(trainer)

    Trainer.step = step  # the forked ranks inherit it
    if run_ranks(victim) != [-signal.SIGKILL] * golden.nproc:
        raise RuntimeError(f"the ranks did not reach step {last}")
    Trainer.step = real
    run_whole(victim)
    check_curve(victim, golden)


def main(folder: str, kills: int, last: int, **options: Any) -> None:
    """Kills at `kills` random moments, and once after step `last` where that is above 0."""
    torch.set_num_threads(1)
    gc.freeze()  # the ranks' collections look at what they make themselves
    golden = nano_config(Path(folder), out=str(Path(folder) / "golden"), **{"steps": 24, **options})
    whole_s = run_whole(golden)
    if kills:
        kill_at_random(golden, whole_s, kills)
    if last:
        kill_after(golden, last)
    print("the same curve")


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
