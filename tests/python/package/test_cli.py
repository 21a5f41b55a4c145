# SPDX-License-Identifier: Apache-2.0
"""The command line: its options are frozen, it refuses in one sentence, and its exit codes have a meaning."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import types
from pathlib import Path

import pytest
import typer
from train_runs import nano_config, run_octavo
from typer.testing import CliRunner

import octavo
import octavo.info
from octavo import cli
from octavo.__main__ import main
from octavo.train.cli import train
from octavo.train.config import TrainConfig
from octavo.train.launch import launcher

pytestmark = pytest.mark.timeout(90)

TRAIN_OPTIONS = {
    *(
        "adamw_lr",
        "batch_size",
        "beta1",
        "beta2",
        "checkpoint_every",
        "clip_norm",
        "compare",
        "compile",
        "data",
        "device",
        "eval_every",
        "fresh",
        "grad_accum",
    ),
    *("lr", "model", "nproc", "optimizer", "out", "plan", "port", "precision", "seed", "seq_len", "steps"),
    *("timeout_s", "weight_decay", "zero", "gather"),
    *("outer", "outer_delay", "outer_fragments", "outer_lr", "outer_momentum", "outer_spread"),
}


@pytest.fixture
def octavo_cli(monkeypatch):
    """Returns a function that calls the command line in this process and returns (exit code, stdout, stderr)."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.app, list(arguments))
        return result.exit_code, result.stdout, result.stderr

    return call


def test_the_options_of_train_are_frozen():
    assert set(inspect.signature(train).parameters) == TRAIN_OPTIONS


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(compare=("dense", "outer:20/sign+ef"), optimizer="adamw", lr=1e-2, nproc=1, fresh=True),
        dict(plan="sign+ef", optimizer="muon", outer=20, outer_spread=True, outer_lr=0.5, adamw_lr=1e-3, compile=True),
        dict(zero=3, gather="int8", data="a b.json", port=29555, timeout_s=5.5, weight_decay=0.0, steps=7),
    ],
)
def test_the_command_makes_the_config_that_its_options_name(octavo_cli, monkeypatch, options):
    ran, config = [], TrainConfig(**options)
    monkeypatch.setattr("octavo.train.cli._run", lambda got: ran.append(got) or 0)
    assert octavo_cli("train", *config.to_args())[0] == 0
    assert ran == [config]


def test_help_says_what_each_command_does(octavo_cli):
    code, said, _ = octavo_cli("--help")
    assert code == 0
    assert all(name in said for name in ("train", "bench", "info"))
    code, said, _ = octavo_cli("train", "--help")
    assert code == 0
    assert "--plan" in said


def test_version_and_cmake_dir(octavo_cli):
    assert octavo_cli("--version") == (0, octavo.__version__ + "\n", "")
    assert octavo_cli("--cmake-dir") == (0, f"{octavo.cmake_dir()}\n", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--zero 1 --outer 4", "--zero 1 and rounds of local steps exclude each other"),
        (
            "--zero 1 --gather int9",
            "--gather int9: parameters are gathered only by a codec such as int8, bf16 or fp8",
        ),
        ("--zero 1 --gather int8+ef", "parameters are gathered only by a codec such as int8, bf16 or fp8"),
        ("--zero 1 --gather topk:0.1", "--gather topk:0.1: parameters are gathered only by a codec"),
        (f"--out {os.fsdecode(b'caf' + bytes([0xE9]))}", "--out caf\ufffd is not valid UTF-8"),
        ("--device tpu", "--device must be auto, cpu, cuda, xpu or sycl, not 'tpu'"),
        ("--steps 0", "--steps must be at least 1, not 0"),
        (
            "--optimizer sgd",
            "--optimizer must be auto, adamw, onebit-adamw, onebit-lamb, zero-one-adam, muon, signum, lion, adam, ",
        ),
        ("--nproc 999", "--nproc must be at most"),
        ("--plan sing", "sing"),
        ("--compare dense,nothing", "nothing"),
        ("--compare dense,dense", "--compare must be different plans"),
    ],
)
def test_bad_options_end_with_2_and_one_sentence(octavo_cli, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    code, said, complaint = octavo_cli("train", *options.split())
    assert (code, said) == (2, "")
    assert complaint.startswith("error: [")
    assert complaint.count("\n") == 1
    assert words in complaint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", ["--steps many", "--nonsense", "stray"])
def test_what_is_no_option_ends_with_2(octavo_cli, options):
    assert octavo_cli("train", *options.split())[0] == 2


def test_half_of_a_launchers_variables_is_refused(octavo_cli, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, _, complaint = octavo_cli("train")
    assert code == 2
    assert complaint == "error: [train.world] RANK is set and WORLD_SIZE is not: set both, or neither\n"


def test_info_is_a_table_or_json(octavo_cli):
    code, said, _ = octavo_cli("info")
    assert code == 0
    assert "back ends" in said
    code, said, _ = octavo_cli("info", "--json")
    facts = json.loads(said)
    assert code == 0
    assert facts["octavo"] == octavo.__version__
    assert facts["devices"][0] == "cpu"
    assert all(reason for reason in facts["absent_devices"].values())
    for kind in ("cuda", "xpu"):
        assert (kind in facts["absent_devices"]) != any(device.startswith(kind) for device in facts["devices"])
    assert {"reference", "cpu"} <= {backend["name"] for backend in facts["backends"] if backend["available"]}
    assert all(backend["reason"] for backend in facts["backends"] if not backend["available"])


def test_infos_table_shows_reasons_as_they_are(monkeypatch, capsys):
    reason = "[kernels.sycl] expected a device, got none"
    monkeypatch.setattr(octavo._C, "backends", lambda: [{"name": "sycl", "available": False, "reason": reason}])
    octavo.info.info()
    assert "[kernels.sycl] expected a device" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["OCTAVO_ISA", "OCTAVO_BACKEND"])
def test_info_refuses_a_variable_that_names_nothing(name):
    done = run_octavo("info", **{name: "foo"})  # in a process of its own, because the kernels are chosen once
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert name in done.stderr and "'foo'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("kernels --device tpu", "the name must be one of cuda, xpu, cpu, sycl, got 'tpu'"),
        ("kernels --device xpu", "xpu was asked for, but there is no such device here: "),
        ("ddp --nproc 999", "--nproc must be at most"),
        ("ddp sing", "sing"),
        ("kernels --json no/such/folder/b.json", "--json no/such/folder/b.json cannot be written"),
    ],
)
def test_a_bench_that_makes_no_sense_is_refused_before_it_measures(octavo_cli, arguments, words):
    code, said, complaint = octavo_cli("bench", *arguments.split())
    assert (code, said) == (2, "")
    assert words in complaint


def test_only_rank_0_of_a_bench_needs_a_place_for_its_figures(octavo_cli, monkeypatch):
    monkeypatch.setattr("octavo.bench.ddp_jobs.in_job", lambda *_: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, code in (("0", 2), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert octavo_cli("bench", "ddp", "--json", "no/such/folder/b.json")[0] == code


def test_bench_hands_its_arguments_on(octavo_cli, monkeypatch):
    app, got = typer.Typer(), []

    @app.callback()
    def root() -> None:
        """Stands for the benchmarks."""

    @app.command()
    def kernels(only: str = "") -> None:
        got.append(only)

    package, module = types.ModuleType("octavo.bench"), types.ModuleType("octavo.bench.cli")
    module.app = package.cli = app
    package.cli = module
    monkeypatch.setitem(sys.modules, "octavo.bench", package)
    monkeypatch.setitem(sys.modules, "octavo.bench.cli", module)
    assert octavo_cli("bench", "kernels", "--only", "packbits")[0] == 0
    assert got == ["packbits"]
    assert octavo_cli("bench", "nothing")[0] == 2


@pytest.mark.ranks
def test_two_ranks_train_from_the_command_line(tmp_path):
    config = nano_config(tmp_path, steps=4)
    done = run_octavo("train", *config.to_args())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    summary = json.loads((Path(config.out) / "summary.json").read_text())
    assert (summary["world_size"], summary["steps"]) == (2, 4)
    assert summary["dense_bytes_per_step"] == 4 * summary["parameters"]
    assert summary["compression_ratio"] > 1
    assert "step 4/4" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_run_that_could_not_be_plotted_is_refused_before_its_first_step(tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else real(name, *rest)
    )
    monkeypatch.setattr(launcher, "launch", lambda _config: pytest.fail("it was launched"))
    monkeypatch.setattr(sys, "argv", ["octavo", "train"])
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and not list(tmp_path.iterdir())
    said = capsys.readouterr().err
    assert said.startswith("error: [cli] the command octavo needs the package matplotlib, which is not installed: ")


@pytest.mark.ranks
def test_bad_data_end_the_whole_job_with_1_and_one_sentence(tmp_path):
    config = nano_config(tmp_path)
    Path(config.data).write_text('{"instruction": "a", "output": "b"}\n{"instruction": \n')
    done = run_octavo("train", *config.to_args())
    assert done.returncode == 1
    assert done.stderr.startswith("error: [train.records] ")
    assert done.stderr.count("\n") == 1
    assert f"{config.data}, line 2" in done.stderr
    assert done.stdout == ""
    assert not Path(config.out).exists()


@pytest.mark.parametrize("bench", ["kernels", "optim", "memory", "quality"])
def test_a_bench_that_sends_nothing_takes_a_link_all_the_same(octavo_cli, bench):
    code, _, said = octavo_cli("bench", bench, "--link", "9gbit")
    assert code == 2 and "expected one of" in said
    assert "Has no effect" in octavo_cli("bench", bench, "--help")[1]


def test_a_link_that_has_no_effect_is_said_to(octavo_cli, tmp_path):
    code, planned, said = octavo_cli(
        *("bench", "quality", "many-tasks", "--dry-run", "--work", str(tmp_path), "--link", "1gbit")
    )
    assert code == 0 and "many-tasks" in planned and "alpaca" not in planned
    assert "--link has no effect" in said


def test_a_stop_before_a_command_has_begun_is_one_sentence(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.__main__.quick_imports", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: [cli] stopped by SIGINT: nothing was begun\n"
