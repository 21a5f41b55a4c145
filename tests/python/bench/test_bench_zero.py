# SPDX-License-Identifier: Apache-2.0
"""`octavo bench zero`: each contender trains the same model; times are of all ranks together, memory is of each
alone."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from fork_server import run_ranks
from train_runs import NANO
from typer.testing import CliRunner

import octavo
from octavo.bench import cli, jobs, zero_contenders, zero_jobs
from octavo.bench.defaults import ZERO_CONTENDERS
from octavo.bench.zero import MODEL, Row, config_of
from octavo.bench.zero_contenders import TORCHS, ZeroName
from octavo.train.model import build_model

#: `octavo bench` in a process that has imported torch.
BENCH = """
import sys
from octavo.bench.cli import app
app(sys.argv[1:])
"""


def bench_zero(folder: Path, *arguments: str) -> dict[str, Row]:
    path, model = folder / "rows.json", folder / "nano.json"
    model.write_text(json.dumps({**NANO, "hidden_size": 64, "max_position_embeddings": 128}))
    options = (f"--model={model}", "--rounds=2", f"--json={path}")
    done = run_ranks(2, BENCH, "zero", *arguments, *options, timeout_s=150, OMP_NUM_THREADS="1", COLUMNS="200")
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    rows = [Row(**row) for row in json.loads(path.read_text())]
    return {row.contender: row for row in rows}


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_all_train_the_same_model_in_turns(tmp_path):
    names = (*(name for name in TORCHS if name != "ddp"), "zero1", "zero2", "zero3", "zero3:int8/int4+ef")
    rows = bench_zero(tmp_path, *names, "--measure=time")
    assert list(rows) == ["ddp", *names]
    ddp = rows["ddp"]
    assert ddp.of_ddp == 1.0
    for row in rows.values():
        assert (row.parameters, row.ranks, row.threads) == (ddp.parameters, 2, 1)
        assert row.milliseconds >= row.least_ms > 0
        assert row.loss == pytest.approx(ddp.loss, rel=1e-2 if "/" in row.contender else 1e-4)
    ring = 4 * ddp.parameters  # a ring all-reduce over two ranks: half of it reduces, the other half gathers
    assert rows["zero1"].wire_bytes == pytest.approx(ring, rel=0.01)
    assert ring <= rows["zero3"].wire_bytes < 1.51 * ring  # stage 3 keeps what it uses again soon
    assert rows["zero3:int8/int4+ef"].wire_bytes < rows["zero3"].wire_bytes / 4


@pytest.mark.ranks
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "share"),
    [
        *(("ddp", 2.0), ("torch-zero1", 1.5), ("fsdp2", 1.0), ("zero2", 1.25), ("zero3", 1.0)),
        ("zero3:int8/int4+ef", 1.25),  # of half of the elements two residuals of 2 bytes
    ],
)
def test_what_a_rank_holds_is_counted(tmp_path, name, share):
    (row,) = bench_zero(tmp_path, name, "--measure=memory").values()
    assert row.of_share == pytest.approx(share, abs=0.05)
    assert row.held_bytes == pytest.approx(row.of_share * 16 * row.parameters / 2)
    assert row.peak_bytes > row.held_bytes
    assert row.milliseconds is None


@pytest.mark.parametrize("name", ["zero1/int4+ef", "zero3:int8/topk:0.01+ef:8bit", "zero3"])
def test_what_a_plan_remembers_is_counted_to_the_byte(two_ranks, tmp_path, name):
    model = tmp_path / "nano.json"
    model.write_text(json.dumps({**NANO, "max_position_embeddings": 128}))
    for counted, in_memory in two_ranks.run(remembered, name, str(model)):
        assert counted == in_memory
        assert (counted > 0) == ("+ef" in name)


def remembered(rank: int, name: str, model: str) -> tuple[int, int]:
    """Returns the bytes of what a plan remembers, as the bench counts them and as the arenas do, where its memory is
    paged."""
    in_arenas = bytes_in_arenas()
    real = octavo.initialize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(octavo, "initialize", lambda net, adamw, config: real(net, adamw, config | {"is_paged": True}))
        step = zero_contenders.build(name, build_model(config_of(model), seed=0), torch.randint(0, 8192, (2, 128)))
    assert isinstance(step, zero_contenders.Zero)
    step()
    step.backward()
    counted = step.remembered_bytes()
    in_memory = bytes_in_arenas() - in_arenas
    step.update()
    return counted, in_memory


def bytes_in_arenas() -> int:
    gc.collect()
    return sum(kind["live_bytes"] for kind in octavo._C.arena_stats().values())


def test_time_and_memory_of_a_contender_are_one_row(monkeypatch):
    asked = []

    def run_job(command: list[str], nproc: int, link: str | None) -> str:
        asked.append((*command[2:], link))
        names = [argument for argument in command[2:] if not argument.startswith("--")]
        of_time = dict(milliseconds=1.0) if "--measure=time" in command else dict(peak_bytes=7, held_bytes=5)
        return json.dumps([dict(contender=name, parameters=1, ranks=nproc, threads=1, **of_time) for name in names])

    monkeypatch.setattr(jobs, "run_job", run_job)
    *_, rows = zero_jobs.measure(
        ["ddp", "zero3"], nproc=2, rounds=3, model="tiny", links=[None, "1gbit"], what=zero_jobs.BOTH
    )
    assert [(row.contender, row.link, row.milliseconds, row.peak_bytes) for row in rows] == [
        ("ddp", "unshaped", 1.0, 7),
        ("zero3", "unshaped", 1.0, 7),
        ("ddp", "1gbit", 1.0, 7),
        ("zero3", "1gbit", 1.0, 7),
    ]
    assert asked[0] == ("ddp", "zero3", "--measure=time", "--rounds=3", "--model=tiny", None)
    assert asked[2:] == [(name, "--measure=memory", "--model=tiny", None) for name in ("ddp", "zero3")]


def test_memory_takes_a_link_all_the_same_and_says_that_it_has_no_effect(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    asked = []
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # only root can make a link
    monkeypatch.setattr(zero_jobs, "measure", lambda _names, **options: asked.append(options["links"]) or [])
    result = CliRunner().invoke(cli.app, ["zero", "zero3", "--measure", "memory", "--link", "1gbit"])
    assert result.exit_code == 0, result.stderr
    assert asked == [[None]] and "--link has no effect" in result.stderr


def test_names_say_stage_plan_and_codec():
    assert ZeroName.parse("zero3") == ZeroName(3)
    assert ZeroName.parse("zero2/topk:64/4096:sign+ef") == ZeroName(2, plan="topk:64/4096:sign+ef")
    assert ZeroName.parse("zero2:int8:128") == ZeroName(2, gather="int8:128")
    assert ZeroName.parse("zero3:int8/int4+ef") == ZeroName(3, plan="int4+ef", gather="int8")
    assert ZeroName.parse("zero1-compiled/int8") == ZeroName(1, compile=True, plan="int8")
    assert ZeroName.parse("zero4") is None
    zero_jobs.check(ZERO_CONTENDERS, MODEL, [None], zero_jobs.BOTH)
    assert config_of(MODEL).num_hidden_layers == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("zero4", "expected ddp, ddp-compiled, torch-zero1, fsdp2, fsdp2:keep, fsdp2-compiled or zeroSTAGE[-compiled]"),
        ("zero3/int9", "int9"),
        ("zero3:int9/int8", "int9"),
        ("zero3:int8+ef", "parameters are gathered only by a codec, such as int8"),
        ("zero3:topk:0.01/int8", "not by topk:0.01"),
        ("zero3 --measure speed", "--measure must be time, memory or both, not 'speed'"),
        ("zero3 --model huge", "--model must be llama-34m, tiny, small, 220m or a CONFIG.json, not 'huge'"),
        ("zero3 --link 2gbit", "--link is one of 10mbit, 100mbit, 1gbit, 10gbit, not '2gbit'"),
    ],
)
def test_what_makes_no_sense_is_refused(monkeypatch, arguments, words):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(cli.app, ["zero", *arguments.split()])
    assert result.exit_code == 2
    assert words in result.stderr


def test_under_torchrun_memory_is_of_one_contender(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(cli.app, ["zero", "zero1", "zero2", "--measure", "memory"])
    assert result.exit_code == 2
    assert "use --measure time, or --measure memory with one contender" in result.stderr
