# SPDX-License-Identifier: Apache-2.0
"""A rank is killed while it sends a large message: the rank that waits for it is told at once, not at the deadline."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from needs_hosts import needs_hosts
from patience import PATIENCE
from train_runs import clean_environment

from octavo.bench.linked_hosts import Hosts

RANK = """
import sys, torch, torch.distributed as dist, octavo
dist.init_process_group("gloo")
octavo.all_reduce(torch.ones(64), "bf16")  # makes the connections
open(sys.argv[1], "w").close()
octavo.all_reduce(torch.ones(16 << 20), "bf16")
"""


@needs_hosts
@pytest.mark.ranks
def test_a_rank_that_is_killed_while_its_message_travels_is_told_at_once(tmp_path):
    begun = [tmp_path / f"begun {rank}" for rank in range(2)]
    with Hosts(2, "10mbit") as hosts:  # 16 MB each way take 13 s
        place = dict(WORLD_SIZE="2", MASTER_ADDR=hosts.address(0), MASTER_PORT="29519", LOCAL_RANK="0")
        ranks = [
            hosts.start(
                rank, [sys.executable, "-c", RANK, str(begun[rank])], clean_environment(RANK=str(rank), **place)
            )
            for rank in range(2)
        ]
        end = time.monotonic() + PATIENCE * 60
        while not all(path.exists() for path in begun):
            assert time.monotonic() < end and ranks[0].poll() is None
            time.sleep(0.01)
        time.sleep(2)  # both ranks send and receive by now
        os.killpg(ranks[1].pid, signal.SIGKILL)
        said, _ = ranks[0].communicate(timeout=PATIENCE * 20)
    assert "an exchange with a peer failed before the end" in said.splitlines()[-1], said
