# SPDX-License-Identifier: Apache-2.0
"""The ranks of a bench: what the environment says of this process, and the process group that it joins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")
Number = TypeVar("Number", int, float)


def is_rank() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main() -> bool:
    """Whether this process is rank 0, which writes, or has yet to start the ranks."""
    return os.environ.get("RANK", "0") == "0"


def in_job(measure: Callable[[], Result]) -> Result | None:
    """Calls `measure` in the process group of the job that the environment describes, which all ranks leave together.
    Returns its result on rank 0, None elsewhere."""
    join()
    result = measure()
    dist.barrier()
    dist.destroy_process_group()
    return result if is_main() else None


def join() -> None:
    """Joins the process group of the job that the environment describes, with the threads that it says."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def greatest(values: Sequence[Number]) -> list[Number]:
    """Returns for each value the greatest one of all ranks, integers as int64 and others as float32."""
    box = torch.tensor(values)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.tolist()
