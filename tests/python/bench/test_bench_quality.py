# SPDX-License-Identifier: Apache-2.0
"""The quality bench: an equal search for all contenders, data that are not used for tuning, and no run made twice."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from train_runs import NANO, clean_environment
from typer.testing import CliRunner

import octavo
from octavo.bench import cli
from octavo.bench.quality import bench, data, report, results, runs, settings
from octavo.bench.quality import cli as quality_cli
from octavo.bench.quality.protocol import Bench, chosen, loss, trials_each
from octavo.bench.quality.search import KNOBS, Trial, best, next_point

ROOT = Path(__file__).parents[3]
NANO_SETTING = settings.Setting(
    name="nano",
    title="nano",
    data=data.BUNDLED,
    reported_on="the bundled tasks",
    tuned_on="other tasks",
    model=NANO,
    steps=8,
    batch_size=2,
    seq_len=48,
    step_s=0.01,
    contenders=("dense", "sign+ef"),
    seeds=(0, 1),
    also_ranks=(4,),
)


def search(moves: tuple[str, ...], loss_of, **start: float) -> list[Trial]:
    trials: list[Trial] = []
    while (point := next_point(moves, trials, start)) is not None:
        trials.append(Trial(point, loss_of(point)))
    return trials


def test_every_contender_has_the_same_number_of_trials_and_the_same_start_but_for_the_rate_of_lamb():
    assert {trials_each(name) for name in settings.CONTENDERS} == {6}
    for name, contender in settings.CONTENDERS.items():
        start = next_point(contender.moves, [], contender.start)
        assert start["lr"] == (1e-2 if name == "onebit-lamb" else 3e-3)
        assert start["beta1"] == 0.9 and start["beta2"] == 0.999


def test_a_warm_up_is_a_share_of_each_run():
    assert settings.CONTENDERS["topk"].plan_for(800) == "topk:0.01+ef+warmup:200"
    for contender in settings.CONTENDERS.values():
        octavo.Plan(contender.plan_for(1))


@pytest.mark.parametrize("contender", settings.CONTENDERS.values(), ids=settings.CONTENDERS.keys())
@pytest.mark.parametrize("wanted", [-1, 1])
def test_a_search_tries_only_new_points_and_finds_its_way_in_every_direction(contender, wanted):
    def loss_of(point):  # the loss falls towards one corner of all ladders
        return -sum(wanted * KNOBS[name].ladder.index(value) for name, value in point.items())

    trials = search(contender.moves, loss_of, **contender.start)
    assert len(trials) == 1 + len(contender.moves)
    assert len({tuple(trial.point.items()) for trial in trials}) == len(trials)
    assert wanted * (best(trials).point["lr"] - trials[0].point["lr"]) > 0


def test_a_second_move_goes_on_where_the_first_helped_and_turns_round_where_it_did_not():
    rates = [trial.point["lr"] for trial in search(("lr", "lr"), lambda point: -point["lr"])]
    assert rates == [3e-3, 4.5e-3, 6.75e-3]
    rates = [trial.point["lr"] for trial in search(("lr", "lr"), lambda point: point["lr"])]
    assert rates == [3e-3, 4.5e-3, 2e-3]


def test_a_diverged_trial_is_a_trial_that_is_not_chosen():
    trials = search(("lr", "lr"), lambda point: math.inf if point["lr"] > 3e-3 else 5.0)
    assert len(trials) == 3
    assert chosen(trials)["lr"] == 3e-3


def alpaca_file(folder: Path, count: int = 30) -> Path:
    records = [dict(instruction=f"Say {i % 27}.", input="", output=str(i)) for i in range(count)]
    path = folder / "alpaca.json"
    path.write_text(json.dumps(records))
    return path


def test_alpaca_is_split_by_question_and_nothing_is_lost(tmp_path):
    tuning, reported = data.split_alpaca(alpaca_file(tmp_path))
    asked = [{record["instruction"] for record in part} for part in (tuning, reported)]
    assert not asked[0] & asked[1]
    assert (len(asked[0]), len(asked[1])) == (9, 18)
    assert len(tuning) + len(reported) == 30


def test_the_corpus_is_two_disjoint_samples_of_a_package(monkeypatch):
    monkeypatch.setattr(data, "TUNING_CHARACTERS", 50_000)
    monkeypatch.setattr(data, "REPORTED_CHARACTERS", 200_000)
    tuning, reported = data.sample_corpus(None)
    texts = [[record["text"] for record in part] for part in (tuning, reported)]
    assert not set(texts[0]) & set(texts[1])
    assert sum(map(len, texts[0])) >= 50_000 and sum(map(len, texts[1])) >= 200_000
    assert data.sample_corpus(None) == (tuning, reported)


def fake_outcome(run: runs.Run) -> dict:
    """Returns an outcome as `octavo train` would leave it, computed only from the options."""
    options = run.options
    loss = 3 - 50 * options["lr"] - 0.1 * options["seed"] / 1000
    figures = dict(accuracy=None, compression_ratio=21.0, compression_ratio_after_warmup=30.7, parameters=901_888)
    figures |= dict(final_loss=loss, tokens=1, step_s=0.1, torch="2.13.0", octavo="0.1.0", precision="fp32")
    return dict(eval_loss=loss, **figures, steps=options["steps"], machine={"processor": "a Xeon", "cores": 2})


def finish_without_training(run: runs.Run) -> dict:
    """Writes an outcome where `octavo train` would leave it."""
    run.out.mkdir(parents=True)
    runs.write_json(run.out / runs.OUTCOME, fake_outcome(run))
    return run.outcome()


def finish_all(setting: settings.Setting, work: Path) -> list[runs.Run]:
    """Writes an outcome for every training of `setting` that `octavo train` would make."""
    made = []

    def finish(run):
        made.append(run)
        return finish_without_training(run)

    place = Bench(setting, work)
    for name in setting.contenders:
        list(place.report(name, chosen(place.tune(name, finish)), finish, setting.seeds))
    return made


def test_trials_and_reported_runs_share_no_seed_no_data_and_no_folder(tmp_path):
    made = finish_all(NANO_SETTING, tmp_path)
    assert len(made) == len({run.out for run in made}) == 2 * (6 + 3)
    trials = [run for run in made if "trials" in run.out.parts]
    reported = [run for run in made if "runs" in run.out.parts]
    assert {run.options["seed"] for run in trials} == {1000}
    assert {run.options["data"] for run in trials} == {"tasks:1000"}
    assert all("data" not in run.options for run in reported)
    assert {(run.options["seed"], run.options["nproc"]) for run in reported} == {(0, 2), (1, 2), (0, 4)}
    assert {run.options["nproc"] * run.options["batch_size"] for run in made} == {4}
    assert {run.options["steps"] for run in trials} == {2} and {run.options["steps"] for run in reported} == {8}


def test_the_json_is_made_of_what_is_finished(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    for run in (tmp_path / "nano" / "runs" / "sign+ef").iterdir():
        (run / runs.OUTCOME).unlink()
    entry = results.collect([NANO_SETTING], tmp_path)["settings"]["nano"]
    assert [len(entry["contenders"][name]["trials"]) for name in ("dense", "sign+ef")] == [6, 6]
    assert [len(entry["contenders"][name]["runs"]) for name in ("dense", "sign+ef")] == [3, 0]
    assert entry["contenders"]["dense"]["chosen"]["lr"] == 6.75e-3
    left = results.forecast(Bench(NANO_SETTING, tmp_path), "sign+ef", (0, 1))
    assert (left.trials, left.runs) == (0, 3)
    assert left.seconds == pytest.approx(3 * (15 + 8 * 0.01))


def documents(folder: Path) -> tuple[Path, Path, Path]:
    paths = folder / "quality.md", folder / "trials.md", folder / "README.md"
    for path in paths:
        path.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    return paths


def test_the_tables_say_what_was_trained_and_stay_between_their_markers(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    details, trials, readme = documents(tmp_path)
    report.write_reports(results.collect([NANO_SETTING], tmp_path), details, trials, readme)
    for path in (details, trials, readme):
        text = path.read_text()
        assert text.startswith(f"before\n{report.BEGIN}\n") and text.endswith(f"{report.END}\nafter\n")
        assert "old" not in text
    said = details.read_text()
    for words in ("6 trials per contender, of 2 steps", "0.9 M parameters", "a Xeon, 2 cores", "torch 2.13.0"):
        assert words in said
    assert "| `sign+ef`, onebit-adamw | lr 0.00675, β1 0.9, β2 0.999 |" in said
    every_trial = trials.read_text()
    assert "## Nano\n" in every_trial and every_trial.count("\n| `dense`, adamw |") == 6
    assert "| `sign+ef`, onebit-adamw | 1 | lr 0.003, β1 0.9, β2 0.999 | 2.750 |" in every_trial
    assert (
        "| nano | 0.9 M, 0.0 M | 2 | 2.663 / 2.662 | 2.663 / 2.662 | +0.0 % | 1/21.0 | 1/30.7 |" in readme.read_text()
    )


def test_the_readme_names_trials_machine_and_torch(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    details, trials, readme = documents(tmp_path)
    report.write_reports(results.collect([NANO_SETTING], tmp_path), details, trials, readme)
    said = readme.read_text()
    assert all(words in said for words in ("6 trials per contender", "a Xeon, 2 cores", "torch 2.13.0"))


def test_a_change_between_processors_is_marked_and_the_readme_names_those_of_its_rows(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    results_of = results.collect([NANO_SETTING], tmp_path)
    contenders = results_of["settings"]["nano"]["contenders"]
    details, trials, readme = documents(tmp_path)
    report.write_reports(results_of, details, trials, readme)
    assert "†" not in details.read_text() + readme.read_text()
    contenders["sign+ef"]["runs"][0]["machine"] = {"processor": "an EPYC", "cores": 2}
    contenders["other"] = dict(contenders["sign+ef"], runs=[dict(contenders["dense"]["runs"][0])])
    contenders["other"]["runs"][0]["machine"] = {"processor": "a Sapphire", "cores": 2}
    report.write_reports(results_of, details, trials, readme)
    for said in (details.read_text(), readme.read_text()):
        assert "+0.0 % † |" in said and "† Some of these pairs were trained on different processors" in said
    assert "an EPYC, 2 cores" in readme.read_text() and "a Sapphire" not in readme.read_text()


def test_the_repository_has_the_tables_of_its_results(tmp_path):
    originals = [ROOT / path for path in (quality_cli.DETAILS, quality_cli.TRIALS, quality_cli.README)]
    copies = [tmp_path / path.name for path in originals]
    for original, copy in zip(originals, copies, strict=True):
        copy.write_text(original.read_text())
    report.write_reports(json.loads((ROOT / quality_cli.RESULTS).read_text()), *copies)
    for original, copy in zip(originals, copies, strict=True):
        assert copy.read_text() == original.read_text(), f"{original.name}: run octavo bench quality --report"


@pytest.mark.parametrize("outcome", [{"diverged": True}, {"eval_loss": None}, {"eval_loss": math.nan}])
def test_a_loss_that_is_not_finite_counts_as_diverged(outcome):
    assert loss(outcome) == math.inf


def test_documents_without_markers_are_refused_and_left_alone(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    details, trials, readme = documents(tmp_path)
    readme.write_text("no markers")
    before = details.read_text()
    with pytest.raises(ValueError, match=r"README\.md has no lines"):
        report.write_reports(results.collect([NANO_SETTING], tmp_path), details, trials, readme)
    assert details.read_text() == before


def test_a_diverged_run_is_reported_as_such(tmp_path):
    finish_all(NANO_SETTING, tmp_path)
    for run in (tmp_path / "nano" / "runs" / "sign+ef").glob("*seed=1*"):
        runs.write_json(run / runs.OUTCOME, {"diverged": True, "machine": {"processor": "a Xeon", "cores": 2}})
    details, trials, readme = documents(tmp_path)
    report.write_reports(results.collect([NANO_SETTING], tmp_path), details, trials, readme)
    assert "2.663 / diverged | - |" in readme.read_text()


@pytest.mark.timeout(300)
def test_the_bench_trains_and_does_nothing_twice(tmp_path, monkeypatch):
    """Runs everything with `octavo train` itself, on one rank with a nano model; one trial has been made already."""
    few = data.DataSet("few", data.split_alpaca)
    short = dataclasses.replace(settings.CONTENDERS["sign+ef"], moves=())
    monkeypatch.setitem(settings.CONTENDERS, "sign+ef", short)
    setting = dataclasses.replace(NANO_SETTING, data=few, steps=6, seeds=(0,), ranks=1, also_ranks=())
    file = alpaca_file(tmp_path)
    place = Bench(setting, tmp_path, file)
    place.prepare()
    place.tune("sign+ef", finish_without_training)
    said: list[str] = []
    bench.run([setting], tmp_path, alpaca=file, contenders=["sign+ef"], say=said.append)
    assert sum(line.startswith("training ") for line in said) == 1
    found = json.loads((tmp_path / bench.JSON).read_text())["settings"]["nano"]["contenders"]["sign+ef"]
    assert len(found["trials"]) == 1 and found["chosen"] in [
        {name: value for name, value in trial.items() if name != "eval_loss"} for trial in found["trials"]
    ]
    assert [(run["seed"], run["ranks"], run["steps"]) for run in found["runs"]] == [(0, 1, 6)]
    said.clear()
    bench.run([setting], tmp_path, alpaca=file, contenders=["sign+ef"], say=said.append)
    assert said == []


@pytest.mark.timeout(300)
def test_a_bench_that_is_stopped_ends_its_training_first(tmp_path):
    command = [sys.executable, "-m", "octavo", "bench", "quality", "--only=bundled", f"--work={tmp_path}"]
    process = subprocess.Popen(
        command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 240
        while not list(tmp_path.rglob("metrics.jsonl")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
        said, complaint = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert complaint.splitlines()[-2:] == [
        "stopped: the same command goes on from here",
        "error: [cli] stopped by SIGTERM",
    ]
    assert said.splitlines() == ["training bundled/trials/dense/lr=0.003,beta1=0.9,beta2=0.999"]
    assert not list(tmp_path.rglob(runs.OUTCOME))
    (lock,) = tmp_path.rglob("run.lock")
    with lock.open("w") as file:  # the lock is free: no rank is left
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_training_that_fails_says_why_and_is_no_result(tmp_path):
    run = runs.Run(tmp_path / "run", {"plan": "nonsense", "steps": 2})
    with pytest.raises(runs.TrainingFailed, match=r"exit status 2 and said: .*nonsense"):
        run.finish()
    assert run.outcome() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "--only tasks --work W",
            "--only is one of bundled, alpaca, rounds, many-tasks, four, corpus, corpus-rounds, not 'tasks'",
        ),
        ("--contender lion --work W", "--contender is one of dense,"),
        ("--seeds 0,9 --work W", "--seeds is a list such as 0,1,2, not '0,9'"),
        ("--seeds 2 --only corpus --work W", "--seeds 2 has none of the seeds of corpus, which are 0,1: name one of"),
        ("", "--work DIR is missing"),
        ("--only alpaca --work W", "needs --alpaca FILE"),
        ("--work W", "needs --alpaca FILE"),
        ("--report --work W", "has no finished training"),
        ("--report", "docs/quality.json cannot be read"),
        ("--report --dry-run --work W", "--report writes the tables of all results, and takes only --work"),
        ("--report --only nonsense", "--report writes the tables of all results, and takes only --work"),
        ("--work FILE --dry-run", "--work FILE is a file"),
        ("--work W --dry-run --json figures", "--dry-run has no figures for --json"),
        ("--work W --dry-run --json no/such/folder", "--json no/such/folder cannot be written"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_trained(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    result = CliRunner().invoke(cli.app, ["quality", *arguments.split()])
    assert result.exit_code == 2
    assert words in result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "FILE"]


def test_a_report_that_is_refused_writes_nothing(tmp_path, monkeypatch):
    finish_all(dataclasses.replace(NANO_SETTING, name="bundled"), tmp_path / "work")
    monkeypatch.setitem(settings.SETTINGS, "bundled", dataclasses.replace(NANO_SETTING, name="bundled"))
    before = set(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    for work, words in (("work", "call this in the repository"), ("mistyped", "has no finished training")):
        result = CliRunner().invoke(cli.app, ["quality", "--report", "--work", work])
        assert result.exit_code == 2 and words in result.stderr
    assert set(tmp_path.rglob("*")) == before
    (tmp_path / "docs" / "quality").mkdir(parents=True)
    details, trials = tmp_path / "docs" / "quality.md", tmp_path / "docs" / "quality" / "trials.md"
    for path in (details, trials, tmp_path / "README.md"):
        path.write_text(f"{report.BEGIN}\n{report.END}\n")
    result = CliRunner().invoke(cli.app, ["quality", "--report", "--work", "work"])
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "docs" / "quality.json").read_text())["settings"]["bundled"]["contenders"]
    assert "6 trials per contender" in details.read_text()
    assert "| `dense`, adamw | 6 |" in trials.read_text()


def test_a_dry_run_prints_the_plan_and_trains_nothing(tmp_path):
    result = CliRunner().invoke(cli.app, ["quality", "--dry-run", "--work", str(tmp_path / "w"), "--only", "corpus"])
    assert result.exit_code == 0
    assert "corpus" in result.stdout and "dense" in result.stdout
    assert not (tmp_path / "w").exists()


def test_a_training_has_its_outcome_before_its_checkpoint_is_removed(tmp_path, monkeypatch):
    run, said = runs.Run(tmp_path / "run", {"steps": 8}), []
    checkpoint = run.out / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model").touch()

    def killed(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.Run, "_train", lambda _self: {"eval_loss": 1.0})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runs.shutil, "rmtree", killed)
        run.finish()
    assert run.outcome()["eval_loss"] == 1.0 and checkpoint.exists()
    monkeypatch.setattr(runs.Run, "_train", killed)
    assert bench._train(run, [], tmp_path, said.append)["eval_loss"] == 1.0
    assert not checkpoint.exists() and said == []


def test_an_outcome_of_other_options_is_refused(tmp_path):
    run = runs.Run(tmp_path, {"steps": 8, "lr": 1e-3})
    (tmp_path / runs.OUTCOME).write_text(json.dumps({"eval_loss": 1.0, "options": {"steps": "8", "lr": "0.001"}}))
    assert run.outcome()["eval_loss"] == 1.0
    with pytest.raises(ValueError, match="was trained with other options"):
        dataclasses.replace(run, options={**run.options, "steps": 80}).outcome()


def test_a_loss_that_is_missing_leaves_its_place_empty():
    assert report._all_losses({1: 0.2, 2: 0.25}, [0, 1, 2]) == "- / 0.200 / 0.250"


def test_a_report_keeps_what_was_written_under_the_same_conditions(tmp_path, monkeypatch):
    whole = {"trials": [1, 2], "chosen": {"lr": 1}, "runs": [{"seed": 0, "ranks": 2}, {"seed": 1, "ranks": 2}]}
    both = {"dense": {"is": "earlier", **whole}, "topk": {"is": "earlier", **whole}}
    names = ("bundled", "alpaca", "corpus")
    earlier = {"settings": {name: {"trial_steps": 100, "contenders": dict(both)} for name in names}}
    path = tmp_path / "quality.json"
    path.write_text(json.dumps(earlier), encoding="utf-8")
    monkeypatch.setattr(quality_cli, "RESULTS", path)
    new = {"dense": {"is": "new", **whole}}
    now = {
        "bundled": {"trial_steps": 100, "contenders": dict(new)},
        "alpaca": {"trial_steps": 200, "contenders": dict(new)},
        "corpus": {"trial_steps": 200, "contenders": {}},
        "rounds": {"trial_steps": 200, "contenders": {}},
    }
    merged = quality_cli._with_earlier({"settings": now})["settings"]
    assert merged["bundled"]["contenders"] == {**both, **new}
    assert merged["alpaca"]["contenders"] == new
    assert merged["corpus"] == {"trial_steps": 100, "contenders": both}
    assert merged["rounds"]["contenders"] == {}


@pytest.mark.parametrize(
    "half_done",
    [
        {"trials": [1], "chosen": None, "runs": []},
        {"trials": [1, 2], "chosen": {"lr": 2}, "runs": [{"seed": 0, "ranks": 2}]},
    ],
)
def test_a_bench_that_is_not_done_takes_no_result_away(tmp_path, monkeypatch, half_done):
    whole = {"trials": [1, 2], "chosen": {"lr": 1}, "runs": [{"seed": 0, "ranks": 2}, {"seed": 1, "ranks": 2}]}
    path = tmp_path / "quality.json"
    path.write_text(json.dumps({"settings": {"bundled": {"contenders": {"dense": whole}}}}), encoding="utf-8")
    monkeypatch.setattr(quality_cli, "RESULTS", path)
    now = {"settings": {"bundled": {"contenders": {"dense": half_done, "topk": half_done}}}}
    merged = quality_cli._with_earlier(now)["settings"]["bundled"]["contenders"]
    assert merged == {"dense": whole, "topk": half_done}


def test_a_report_without_earlier_results_is_what_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(quality_cli, "RESULTS", tmp_path / "none.json")
    now = {"settings": {"bundled": {"contenders": {"dense": {"is": "new"}}}}}
    assert quality_cli._with_earlier(now) is now


def test_the_figures_also_stand_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "run", lambda *_, **__: None)
    file = tmp_path / "figures.json"
    arguments = ["--work", str(tmp_path / "w"), "--only", "bundled", "--json", str(file)]
    result = CliRunner().invoke(cli.app, ["quality", *arguments])
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(file.read_text())["settings"]) == set(settings.SETTINGS)
