# SPDX-License-Identifier: Apache-2.0
"""The command `octavo bench quality`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from octavo.bench.options import JsonFile, Unlinked, check_place, write_figures
from octavo.bench.output import errors_in_a_sentence
from octavo.bench.quality import bench
from octavo.bench.quality.protocol import Bench
from octavo.bench.quality.report import write_reports
from octavo.bench.quality.results import Forecast, collect, forecast
from octavo.bench.quality.runs import TrainingFailed
from octavo.bench.quality.settings import CONTENDERS, SETTINGS, Setting
from octavo.console import make_console
from octavo.durable_files import write_json

RESULTS = Path("docs/quality.json")
DETAILS, TRIALS, README = Path("docs/quality.md"), Path("docs/quality/trials.md"), Path("README.md")


def quality(
    work: Annotated[
        Path | None, typer.Option(help="The folder of the trainings; the same command continues with what is left.")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(help="Settings, as --only names them.", show_default="all")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(SETTINGS)}; may be repeated.")] = None,
    contender: Annotated[list[str] | None, typer.Option(help=f"{', '.join(CONTENDERS)}; may be repeated.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds to report on, separated by commas.")] = None,
    alpaca: Annotated[
        Path | None, typer.Option(help="LLaMA-Factory's alpaca_en_demo.json, for the setting alpaca.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what is left and how long it takes.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help=f"Write the tables of {DETAILS}, {TRIALS} and {README} from {RESULTS}, which --work brings up to "
            "date.",
        ),
    ] = False,
    link: Unlinked = None,
    json_file: JsonFile = None,
) -> None:
    """Measure the loss that each contender reaches, all tuned alike. Takes hours, and can be interrupted and resumed at
    any time."""
    with _interruptible(), errors_in_a_sentence((TrainingFailed, OSError)):
        check_place(json_file)
        if report and (dry_run or words or only or contender or seeds or alpaca):
            raise ValueError(
                "[bench.quality] --report writes the tables of all results, and takes only --work and --json beside it"
            )
        if dry_run and json_file is not None:
            raise ValueError("[bench.quality] --dry-run has no figures for --json: leave one of them out")
        if work is not None and work.exists() and not work.is_dir():
            raise ValueError(f"[bench.quality] --work {work} is a file: it takes a folder")
        if report:
            _report(work)
            _copy(RESULTS, json_file)
            return
        settings = [
            SETTINGS[name] for name in _known([*(words or ()), *(only or ())] or list(SETTINGS), SETTINGS, "--only")
        ]
        names = _known(contender or [], CONTENDERS, "--contender")
        chosen_seeds = _seeds(seeds, settings)
        if work is None:
            raise ValueError("[bench.quality] --work DIR is missing: the folder of the trainings")
        if dry_run:
            _show_forecast(settings, work.absolute(), names, chosen_seeds)
            return
        say = partial(make_console().print, highlight=False, markup=False, soft_wrap=True)
        bench.run(settings, work.absolute(), alpaca=alpaca, contenders=names, seeds=chosen_seeds, say=say)
        _copy(bench.write_results(settings, work.absolute()), json_file)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ends the command after ^C with exit code 130, and says that the same command continues the work."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped: the same command goes on from here", err=True)
        raise typer.Exit(130) from None


def _copy(results: Path, json_file: Path | None) -> None:
    if json_file is not None:
        write_figures(json_file, results.read_text(encoding="utf-8"))


def _known(names: list[str], known: dict[str, object], option: str) -> list[str]:
    for name in names:
        if name not in known:
            raise ValueError(f"[bench.quality] {option} is one of {', '.join(known)}, not '{name}'")
    return names


def _seeds(text: str | None, settings: Sequence[Setting]) -> tuple[int, ...] | None:
    """Returns the seeds that `text` names. Raises ValueError also where a setting has none of them: it would be tuned
    for hours, with nothing to report."""
    if text is None:
        return None
    known = sorted({seed for setting in SETTINGS.values() for seed in setting.seeds})
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or not set(seeds) <= set(known):
        raise ValueError(f"[bench.quality] --seeds is a list such as {','.join(map(str, known))}, not '{text}'")
    for setting in settings:
        if not setting.seeds_among(seeds):
            own = ",".join(map(str, setting.seeds))
            raise ValueError(
                f"[bench.quality] --seeds {text} has none of the seeds of {setting.name}, which are {own}: name one of "
                f"them, or only other settings"
            )
    return seeds


def _report(work: Path | None) -> None:
    results = _earlier() if work is None else _with_earlier(_finished(work))
    write_reports(results, DETAILS, TRIALS, README)  # first: outside of the repository it writes nothing
    if work is not None:
        write_json(RESULTS, results)


def _finished(work: Path) -> dict[str, Any]:
    finished = collect(list(SETTINGS.values()), work.absolute())
    if not any(setting["contenders"] for setting in finished["settings"].values()):
        raise ValueError(f"[bench.quality] --work {work} has no finished training")
    return finished


def _earlier() -> dict[str, Any]:
    try:
        return json.loads(RESULTS.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"[bench.quality] {RESULTS} cannot be read ({error.strerror}): call this in the repository, with --work "
            "where the bench has run"
        ) from error


_CONDITIONS = ("model", "steps", "trial_steps", "tokens_per_step", "ranks", "tuning_seed")
"""The conditions that the contenders of one table have in common."""


def _with_earlier(finished: dict[str, Any]) -> dict[str, Any]:
    """Returns what is finished, with earlier results of other settings, and of other contenders under the same
    conditions. Results under other conditions are not comparable."""
    if not RESULTS.exists():
        return finished
    earlier = _earlier()["settings"]
    for name, setting in finished["settings"].items():
        before = earlier.get(name, {"contenders": {}})
        if not setting["contenders"] and before["contenders"]:
            finished["settings"][name] = before
        elif all(before.get(key) == setting.get(key) for key in _CONDITIONS):
            known = before["contenders"]
            new = {name: entry for name, entry in setting["contenders"].items() if _replaces(entry, known.get(name))}
            setting["contenders"] = known | new
    return finished


def _replaces(entry: dict[str, Any], earlier: dict[str, Any] | None) -> bool:
    """Whether a contender has at least the trials and the runs that it had earlier. Where the bench goes on they are
    there in the end."""
    if earlier is None:
        return True
    runs, earlier_runs = ({(run["seed"], run["ranks"]) for run in one["runs"]} for one in (entry, earlier))
    return runs >= earlier_runs and len(entry["trials"]) >= len(earlier["trials"])


def _show_forecast(settings: Sequence[Setting], work: Path, names: Sequence[str], seeds: Sequence[int] | None) -> None:
    table = Table(title="left to do, with the time on two quiet cores")
    for heading in ("setting", "contender"):
        table.add_column(heading)
    for heading in ("trials", "runs", "minutes"):
        table.add_column(heading, justify="right")
    total = 0.0
    for setting in settings:
        for name in names or setting.contenders:
            left: Forecast = forecast(Bench(setting, work), name, setting.seeds_among(seeds))
            total += left.seconds
            table.add_row(setting.name, name, str(left.trials), str(left.runs), f"{left.seconds / 60:.0f}")
    table.add_section()
    table.add_row("all", "", "", "", f"{total / 60:.0f}")
    make_console().print(table)
