# SPDX-License-Identifier: Apache-2.0
"""Kills all ranks of a job, starts it again, and compares its curve with an unbroken one; run as a script.

Everything is imported once and the ranks are forked. A kill then costs tenths of a second instead of the seconds that
importing takes, and it happens while the job works.
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
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401  rank 0 imports it where it draws
import torch
import torch._dynamo  # torch imports it at the first step of an optimizer
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from train_runs import NANO, nano_config, read_curve
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from octavo.train.config import TrainConfig
from octavo.train.launch.rank_main import run_rank
from octavo.train.launch.world import PARENT_STORE
from octavo.train.trainer import Trainer

PORT = struct.Struct("H")


def run_ranks(config: TrainConfig, kill_after_s: float | None = None) -> list[int]:
    """Forks the ranks of a job and kills them after `kill_after_s` seconds, where given. Returns their exit codes.

    The store at which they meet is made after the last fork and ends with the last rank. Its thread looks up the names
    of the processes that connect, and a child forked meanwhile would wait forever for the lock of libc's resolver.
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
    """Starts a rank, which reads the store's port from the pipe. Returns its process id."""
    pid = os.fork()
    if pid == 0:
        os.close(writer)  # so that the pipe ends when the parent does
        (port,) = PORT.unpack(os.read(reader, PORT.size))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), PARENT_STORE: "1"}
        os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(config.nproc))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        run_rank(config)
    return pid


def run_whole(config: TrainConfig) -> float:
    """Runs a job to its end and returns the seconds it took. Raises RuntimeError where a rank failed."""
    start = time.monotonic()
    codes = run_ranks(config)
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}")
    return time.monotonic() - start


def check_curve(victim: TrainConfig, golden: TrainConfig) -> None:
    """Raises RuntimeError where the curve of a run that was killed differs from that of the run that was not."""
    if read_curve(Path(victim.out)) != read_curve(Path(golden.out)):
        raise RuntimeError(f"the curve of {victim.out} differs from that of {golden.out}")


def kill_at_random(golden: TrainConfig, whole_s: float, kills: int) -> None:
    """Compares runs that were killed, `kills` times in all, with the golden one that took `whole_s`."""
    moments, hits, runs = random.Random(1), 0, 0
    while hits < kills:
        victim = dataclasses.replace(golden, out=f"{golden.out}-victim-{runs}")
        if -signal.SIGKILL in run_ranks(victim, kill_after_s=moments.uniform(0.1, 1.0) * whole_s):
            hits += 1
        else:  # the run ended in time: the next victim begins anew
            check_curve(victim, golden)
            runs += 1
            whole_s *= 0.8  # the golden run was slower, because the machine had more to do
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

    Trainer.step = step  # the forked ranks inherit this
    if run_ranks(victim) != [-signal.SIGKILL] * golden.nproc:
        raise RuntimeError(f"the ranks did not reach step {last}")
    Trainer.step = real
    run_whole(victim)
    check_curve(victim, golden)


def save_a_model() -> None:
    """Imports what the first save of a process imports, which takes longer than the steps of a job."""
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**NANO)).save_pretrained(folder)


def main(folder: str, kills: int, last: int, **options: Any) -> None:
    """Kills ranks at `kills` random moments, and once after step `last` where that is above 0; compares the curves."""
    torch.set_num_threads(1)
    save_a_model()
    gc.freeze()  # the ranks' garbage collections then examine only their own objects
    golden = nano_config(Path(folder), out=str(Path(folder) / "golden"), **{"steps": 24, **options})
    whole_s = run_whole(golden)
    if kills:
        kill_at_random(golden, whole_s, kills)
    if last:
        kill_after(golden, last)
    print("the same curve")


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
