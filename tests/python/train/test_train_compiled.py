# SPDX-License-Identifier: Apache-2.0
"""`octavo train --compile`: compiled graphs train as well as the model's own code, by each strategy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from killed_runs import killed_and_resumed
from train_runs import NANO, nano_config, read_curve, run_as_rank

from octavo.train.config import TrainConfig

pytestmark = [pytest.mark.timeout(180), pytest.mark.ranks]


def compiled_config(folder: Path, **changes: Any) -> TrainConfig:
    """Returns the config of a model of one layer: a second one would compile the same code again."""
    config = nano_config(folder, **{"plan": "dense", "grad_accum": 2, "clip_norm": 0.5, **changes})
    model = folder / "one-layer.json"
    model.write_text(json.dumps(NANO | {"num_hidden_layers": 1}))
    return dataclasses.replace(config, model=str(model))


def compiled_run(rank: int, config: TrainConfig) -> tuple[dict[str, Any], int]:
    """Returns the summary of a run, and the number of graphs that were compiled in it."""
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()  # the ranks of a pool would reach the limit of recompilations together
    counters.clear()
    summary = run_as_rank(rank, config)
    return summary, counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("strategy", "rel"),
    [
        ({}, 1e-4),
        ({"outer": 4}, 1e-4),
        ({"zero": 1, "steps": 4}, 1e-4),
        ({"zero": 2, "steps": 4}, 1e-4),
        ({"zero": 3}, 1e-4),
        ({"zero": 3, "plan": "int4+ef", "optimizer": "adamw8bit"}, 1e-3),  # other digits may have other codes
    ],
    ids=["ddp", "outer", "zero1", "zero2", "zero3", "zero3 in few bits"],
)
def test_compiled_graphs_train_as_well(two_ranks, tmp_path, strategy, rel):
    as_it_is = compiled_config(tmp_path, **strategy)
    config = dataclasses.replace(as_it_is, compile=True, out=str(tmp_path / "compiled"))
    runs = (two_ranks.run(compiled_run, run, timeout_s=150)[0] for run in (as_it_is, config))
    (expected, graphs_before), (summary, graphs) = runs
    assert graphs > graphs_before == 0
    curves = [[record["loss"] for record in read_curve(Path(run.out))] for run in (as_it_is, config)]
    assert curves[1] == pytest.approx(curves[0], rel=rel)
    assert summary["eval_loss"] == pytest.approx(expected["eval_loss"], rel=rel)
    assert summary["state_bytes_per_param"] == expected["state_bytes_per_param"]
    assert summary["compile"] is True and expected["compile"] is False


@pytest.mark.parametrize("strategy", [{}, {"outer": 4, "outer_delay": 2}], ids=["ddp", "outer"])
def test_a_compiled_run_killed_resumes_exactly(two_ranks, tmp_path, strategy):
    config = compiled_config(tmp_path, compile=True, **strategy)
    config = dataclasses.replace(config, plan="int4+ef", optimizer="adamw")
    whole, broken = (dataclasses.replace(config, out=str(tmp_path / name)) for name in ("whole", "broken"))
    for expected, resumed in two_ranks.run(killed_and_resumed, whole, broken, 5, timeout_s=150):
        assert resumed == expected
    assert read_curve(Path(broken.out)) == read_curve(Path(whole.out))
