# SPDX-License-Identifier: Apache-2.0
"""The examples of examples/{trainer,accelerate,lightning}, as a user starts them: two ranks, no download."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from train_runs import clean_environment

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.timeout(180), pytest.mark.ranks]


@pytest.mark.parametrize(
    ("framework", "options"),
    [("trainer", []), ("trainer", ["--one-bit"]), ("accelerate", []), ("lightning", [])],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_the_loss_falls_while_a_quarter_of_the_bytes_travels(framework, options, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(EXAMPLES / framework / "train.py"), *options],
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout
    first, last = map(float, re.search(r"^loss: (\S+) -> (\S+)$", done.stdout, re.MULTILINE).groups())
    assert last < 0.8 * first
    sent, dense = map(int, re.search(r"^bytes sent: (\d+), in float32: (\d+)$", done.stdout, re.MULTILINE).groups())
    assert 0 < sent < dense / 4, done.stdout  # 4 bits per value, and the exempt vectors of a very small model
