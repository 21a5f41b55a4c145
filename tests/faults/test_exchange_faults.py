# SPDX-License-Identifier: Apache-2.0
"""A rank that is lost while large messages travel: who exchanges with it is told at once, not at the deadline."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fork_server import start
from patience import PATIENCE

import octavo

VALUES = 16 << 20
DEADLINE_S = 600.0

pytestmark = pytest.mark.ranks


def exchange_for_ever(rank: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=DEADLINE_S))
    values = torch.ones(VALUES)
    octavo.all_reduce(values, "int8")
    (folder / f"begun {rank}").touch()
    try:
        while True:
            octavo.all_reduce(values, "int8")
    except RuntimeError as error:
        (folder / f"told {rank}").write_text(str(error))
        os._exit(0)  # the process group waits for the other rank


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE * 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        time.sleep(0.01)


@pytest.mark.parametrize("milliseconds", [0, 11, 23, 37])
def test_a_rank_that_is_killed_inside_of_an_exchange_is_told_at_once(tmp_path, milliseconds):
    ranks = [start(exchange_for_ever, rank, tmp_path, daemon=True) for rank in range(2)]
    try:
        for rank in range(2):
            wait_for(tmp_path / f"begun {rank}")
        time.sleep(milliseconds / 1e3)
        os.kill(ranks[1].pid, signal.SIGSTOP)  # what travels stays where it is
        time.sleep(0.3)
        os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[0].join(PATIENCE * 20)
        assert ranks[0].exitcode == 0, "rank 0 still waits for a rank that is gone"
        assert "the connection to a peer failed before the deadline" in (tmp_path / "told 0").read_text()
    finally:
        for process in ranks:
            process.kill()
