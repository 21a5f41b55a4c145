# SPDX-License-Identifier: Apache-2.0
"""`octavo train --device sycl`: the curve and the weights of the CPU, and a run that changes its device on the way."""

import dataclasses
import json
from pathlib import Path

import pytest
from train_runs import nano_config, read_curve, run_octavo

import octavo.sycl  # noqa: F401
from octavo.train.config import TrainConfig

pytestmark = pytest.mark.ranks


def summary(config: TrainConfig) -> dict:
    return json.loads((Path(config.out) / "summary.json").read_text())


def train(config: TrainConfig) -> None:
    run = run_octavo("train", *config.to_args())
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("plan, precision", [("sign+ef", "fp32"), ("dense", "bf16")])
def test_the_curve_of_the_cpu(tmp_path: Path, plan: str, precision: str) -> None:
    runs = {}
    for device in ("cpu", "sycl"):
        (tmp_path / device).mkdir()
        config = nano_config(tmp_path / device, device=device, plan=plan, precision=precision)
        train(config)
        runs[device] = (read_curve(Path(config.out)), summary(config))
    assert runs["cpu"][0] == runs["sycl"][0]
    here, there = runs["cpu"][1], runs["sycl"][1]
    assert here["replicas_sha256"] == there["replicas_sha256"] and here["eval_loss"] == there["eval_loss"]
    assert (here["device"], there["device"]) == ("cpu", "sycl")
    assert here["peak_device_bytes"] == 0 and there["peak_device_bytes"] > 4 * there["parameters"]


def test_a_run_goes_on_with_another_device(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    whole, halves = nano_config(tmp_path / "whole"), nano_config(tmp_path / "halves", device="sycl")
    train(whole)
    train(halves)
    checkpoints = Path(halves.out) / "checkpoint"
    for name in ("step-000008", "summary.json"):
        path = checkpoints / name if name.startswith("step") else Path(halves.out) / name
        path.rename(tmp_path / name)
    train(dataclasses.replace(halves, device="cpu"))
    assert summary(whole)["replicas_sha256"] == summary(halves)["replicas_sha256"]
    assert summary(halves)["device"] == "cpu"
