# SPDX-License-Identifier: Apache-2.0
"""examples/paged: HF Trainer with paged and with ordinary states, resumed from its checkpoints, without a download."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fork_server import run_code

import octavo.sycl

SCRIPT = Path(__file__).parents[3] / "examples/paged/train.py"
NAMES = ("adamw8bit", "paged-adamw8bit")
STEPS = 4 * 21  # the bytes of the step numbers, which each of the model's parameters has on the CPU

#: Runs an unbroken training, one that goes on from the checkpoint in its middle, and one whose optimizer Trainer makes.
RUN = """
import os, runpy, shutil, sys
_, folder, script, device = sys.argv
os.chdir(folder)
def run(out, *options):
    sys.argv = [script, "--out", out, "--device", device, "--steps=8", "--save-every=4", "--log-every=1", *options]
    runpy.run_path(script, run_name="__main__")
run("whole")
shutil.copytree("whole", "resumed", ignore=shutil.ignore_patterns("checkpoint-8"))
run("resumed", "--resume")
run("by-class", "--by-class")
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("device", ["cpu", "sycl"])
def test_paged_states_leave_every_bit_of_the_loss_as_it_is_and_stay_paged_when_resumed(device, tmp_path):
    if device == "sycl" and (reason := octavo.sycl.why_missing()):
        pytest.skip(f"no device sycl: {reason}")
    status, said, errors = run_code(RUN, tmp_path, SCRIPT, device, timeout_s=170, OMP_NUM_THREADS="1")
    assert status == 0, errors
    assert len(re.findall(r"^{'loss'", said, re.MULTILINE)) == len(NAMES) * (8 + 4 + 8)

    finished = [tmp_path / run / name / "checkpoint-8" for run in ("whole", "resumed", "by-class") for name in NAMES]
    curves = [losses(checkpoint) for checkpoint in finished]
    assert all(curve == curves[0] for curve in curves)
    assert len(curves[0]) == 8 and curves[0][-1] < 0.9 * curves[0][0]
    weights = [(checkpoint / "model.safetensors").read_bytes() for checkpoint in finished]
    assert all(other == weights[0] for other in weights)

    ((managed, ordinary),) = places(said, "adamw8bit")
    assert managed == 0 and places(said, "paged-adamw8bit") == {(ordinary - STEPS, STEPS)}


def places(said: str, name: str) -> set[tuple[int, int]]:
    """Returns the bytes of an optimizer's states in managed and in ordinary memory, after each training."""
    line = rf"^{name}: (\d+) bytes of state in managed memory, (\d+) in ordinary memory$"
    return {(int(managed), int(ordinary)) for managed, ordinary in re.findall(line, said, re.MULTILINE)}


def losses(checkpoint: Path) -> list[float]:
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]
