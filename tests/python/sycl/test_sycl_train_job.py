# SPDX-License-Identifier: Apache-2.0
"""A training job on sycl: it has the CPU's curve and weights, and a run can change its device on the way."""

import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool
from train_runs import nano_config, read_curve

import octavo.sycl  # noqa: F401
from octavo.train.config import TrainConfig
from octavo.train.job import run_job
from octavo.train.launch.world import World


def job_of(rank: int, config: TrainConfig) -> dict:
    return run_job(config, World(rank, 2), None)


def train(ranks: RankPool, config: TrainConfig) -> dict:
    """Trains on two ranks; returns the summary."""
    return ranks.run(job_of, config)[0]


@pytest.mark.parametrize("plan, precision", [("sign+ef", "fp32"), ("dense", "bf16")])
def test_the_curve_of_the_cpu(two_ranks: RankPool, tmp_path: Path, plan: str, precision: str) -> None:
    runs = {}
    for device in ("cpu", "sycl"):
        (tmp_path / device).mkdir()
        config = nano_config(tmp_path / device, device=device, plan=plan, precision=precision)
        summary = train(two_ranks, config)
        runs[device] = (read_curve(Path(config.out)), summary)
    assert runs["cpu"][0] == runs["sycl"][0]
    here, there = runs["cpu"][1], runs["sycl"][1]
    assert here["replicas_sha256"] == there["replicas_sha256"] and here["eval_loss"] == there["eval_loss"]
    assert (here["device"], there["device"]) == ("cpu", "sycl")
    assert here["peak_device_bytes"] == 0 and there["peak_device_bytes"] > 4 * there["parameters"]


def test_a_run_goes_on_with_another_device(two_ranks: RankPool, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    whole, halves = nano_config(tmp_path / "whole"), nano_config(tmp_path / "halves", device="sycl")
    unbroken = train(two_ranks, whole)
    train(two_ranks, halves)
    checkpoints = Path(halves.out) / "checkpoint"
    for name in ("step-000008", "summary.json"):
        path = checkpoints / name if name.startswith("step") else Path(halves.out) / name
        path.rename(tmp_path / name)
    resumed = train(two_ranks, dataclasses.replace(halves, device="cpu"))
    assert unbroken["replicas_sha256"] == resumed["replicas_sha256"]
    assert resumed["device"] == "cpu"


@pytest.fixture
def fresh_ranks() -> Iterator[RankPool]:
    """Returns two ranks in which nothing has run, because managed memory of other tests would count in a peak."""
    pool = RankPool(2)
    yield pool
    pool.stop()


def collect(_rank: int) -> None:
    """Frees what the last training has left, because it would count, too."""
    gc.collect()


@pytest.mark.ranks
@pytest.mark.timeout(240)
def test_paged_states_are_managed_and_none_of_the_devices(fresh_ranks: RankPool, tmp_path: Path) -> None:
    runs = {}
    for name, options in (
        ("cpu", dict(device="cpu", optimizer="paged-adamw8bit")),
        ("paged", dict(device="sycl", optimizer="paged-adamw8bit")),
        ("device", dict(device="sycl", optimizer="adamw8bit")),
    ):
        (tmp_path / name).mkdir()
        fresh_ranks.run(collect)
        runs[name] = train(fresh_ranks, nano_config(tmp_path / name, plan="int4+ef", **options))
    assert len({run["replicas_sha256"] for run in runs.values()}) == 1
    paged, device = runs["paged"], runs["device"]
    states = paged["state_bytes_per_param"] * paged["parameters"]
    residuals = 2 * paged["wire_state_bytes_per_param"] * paged["parameters"]  # of two generations
    assert paged["peak_managed_bytes"] == pytest.approx(states + residuals, rel=0.02)
    assert device["peak_managed_bytes"] == 0
    assert device["peak_device_bytes"] - paged["peak_device_bytes"] > 0.9 * states


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stage, compiled", [(1, False), (2, False), (3, False), (3, True)])
def test_zero_trains_as_on_the_cpu(two_ranks: RankPool, tmp_path: Path, stage: int, compiled: bool) -> None:
    runs = {}
    for device in ("cpu", "sycl"):
        (tmp_path / device).mkdir()
        options = dict(plan="dense", clip_norm=0.5, grad_accum=2, compile=compiled and device == "sycl")
        config = nano_config(tmp_path / device, device=device, zero=stage, **options)
        summary = train(two_ranks, config)
        runs[device] = [record["loss"] for record in read_curve(Path(config.out))], summary["eval_loss"]
        assert (summary["device"], summary["zero_stage"]) == (device, stage)
    assert runs["sycl"][0] == pytest.approx(runs["cpu"][0], rel=1e-5)
    assert runs["sycl"][1] == pytest.approx(runs["cpu"][1], rel=1e-5)
