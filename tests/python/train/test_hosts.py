# SPDX-License-Identifier: Apache-2.0
"""The README's command for several machines: torchrun with --nnodes, and an --out on each machine's own disk."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from needs_hosts import needs_hosts
from patience import PATIENCE
from train_runs import clean_environment, nano_config

from octavo.bench.linked_hosts import Hosts
from octavo.train.config import TrainConfig


def train_on(hosts: Hosts, folder: Path, config: TrainConfig) -> list[dict]:
    started = []
    for host in range(hosts.count):
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=1",
            f"--nnodes={hosts.count}",
        ]
        torchrun += [f"--node-rank={host}", f"--master-addr={hosts.address(0)}", "--master-port=29517"]
        here = dataclasses.replace(config, out=str(folder / str(host)))
        command = [*torchrun, "-m", "octavo", "train", *here.to_args()]
        started.append(hosts.start(host, command, clean_environment(OMP_NUM_THREADS="1")))
    for host, process in enumerate(started):
        output, _ = process.communicate(timeout=PATIENCE * 150)
        assert process.returncode == 0, f"host {host}: {output}"
    lines = (folder / "0" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@needs_hosts
@pytest.mark.ranks
@pytest.mark.timeout(200)
def test_the_same_command_trains_on_separate_hosts(tmp_path):
    count = 2
    config = nano_config(tmp_path, steps=4, plan="sign+ef")
    with Hosts(count) as hosts:
        metrics = train_on(hosts, tmp_path, config)
    assert [line["step"] for line in metrics] == list(range(1, 5))
    summary = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert summary["world_size"] == count and summary["plan"] == "sign+ef"
    assert summary["compression_ratio"] > 3
    for host in range(1, count):  # every host keeps the state of its own rank
        assert list((tmp_path / str(host)).rglob("rank-*")), host
