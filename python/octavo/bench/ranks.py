# SPDX-License-Identifier: Apache-2.0
"""The ranks of a bench: what the environment says of this process, and the process group that it joins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist


def is_rank() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main() -> bool:
    """Whether this process is rank 0, which writes, or has yet to start the ranks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined() -> Iterator[None]:
    """Inside, this process is in the process group of the job that the environment describes. All ranks leave it
    together."""
    join()
    yield
    dist.barrier()
    dist.destroy_process_group()


def join() -> None:
    """Joins the process group of the job that the environment describes, with the threads that it says."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
