# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/quality.md, docs/quality/trials.md and the README, made from the bench's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from octavo.bench.quality.settings import BASELINE
from octavo.durable_files import write_text

BEGIN, END = "<!-- quality: begin, made by octavo bench quality --report -->", "<!-- quality: end -->"
README_CONTENDERS = (BASELINE, "sign+ef")

Json = dict[str, Any]


def write_reports(results: Json, details: Path, trials: Path, readme: Path) -> None:
    """Replaces what is between the markers of all three files. Raises ValueError, with nothing written, where one has
    none."""
    tables = {details: _details(results), trials: _trials(results), readme: _summary(results)}
    new = {path: _between_markers(path, text) for path, text in tables.items()}
    for path, text in new.items():
        write_text(path, text)


def _between_markers(path: Path, text: str) -> str:
    """Returns the whole of `path` with `text` between its markers."""
    try:
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    except OSError as error:
        raise ValueError(
            f"[bench.quality] {path} cannot be read: {error.strerror}; call this in the repository"
        ) from error
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"[bench.quality] {path} has no lines '{BEGIN}' and '{END}' to put the tables between")
    return f"{before}{BEGIN}\n{text.strip()}\n{END}{after}"


def _details(results: Json) -> str:
    """Returns a section for each setting: what was trained on what, and the reported runs."""
    return "\n".join(part for setting in _with_runs(results) for part in _reported_lines(setting))


def _reported_lines(setting: Json) -> list[str]:
    lines = [f"### {_heading(setting)}", "", _conditions(setting), ""]
    for ranks in sorted({run["ranks"] for entry in setting["contenders"].values() for run in entry["runs"]}):
        lines += [*_runs_table(setting, ranks), ""]
    return lines


def _trials(results: Json) -> str:
    """Returns a section for each setting, with every trial."""
    settings = _with_runs(results)
    return "\n".join(
        part for setting in settings for part in (f"## {_heading(setting)}", "", *_trials_table(setting), "")
    )


def _heading(setting: Json) -> str:
    return setting["title"].capitalize()


def _conditions(setting: Json) -> str:
    runs = [run for entry in setting["contenders"].values() for run in entry["runs"] if "parameters" in run]
    trials = _join(entry["trials_each"] for entry in setting["contenders"].values())
    tokens = f"{setting['steps'] * setting['tokens_per_step'] / 1e6:.1f} M"
    return (
        f"Reported on {setting['reported_on']}. Tuned on {setting['tuned_on']}: {trials} trials per contender, of "
        f"{setting['trial_steps']:,} steps each. A LLaMA of {_parameters(setting)} "
        f"parameters from scratch, {_join(run['precision'] for run in runs)}, {setting['steps']:,} steps of "
        f"{setting['tokens_per_step']:,} tokens ({tokens} in all). Machine: {_machines(runs)}; "
        f"torch {_join(run['torch'] for run in runs)}."
    )


def _runs_table(setting: Json, ranks: int) -> list[str]:
    dense = setting["contenders"].get(BASELINE)
    entries = {name: entry for name, entry in setting["contenders"].items() if _losses(entry, ranks)}
    seeds = sorted({seed for entry in entries.values() for seed in _losses(entry, ranks)})
    rows = [
        [
            f"`{entry['plan']}`, {entry['optimizer']}",
            _point(entry["chosen"]),
            _all_losses(_losses(entry, ranks), seeds),
            "" if name == BASELINE else _change(entry, dense, ranks),
            *_fewer_bytes(entry, ranks),
        ]
        for name, entry in entries.items()
    ]
    heading = f"eval loss, {ranks} ranks, seed {' / '.join(map(str, seeds))}"
    table = _table(["contender", "tuned to", heading, "against dense", "bytes, run", "after warm-up"], rows, left=2)
    return [*table, *_note_on_processors(rows)]


def _trials_table(setting: Json) -> list[str]:
    rows = [
        [f"`{entry['plan']}`, {entry['optimizer']}", str(turn), _point(_knobs(trial)), _loss(trial["eval_loss"])]
        for entry in setting["contenders"].values()
        for turn, trial in enumerate(entry["trials"], start=1)
    ]
    return _table(["contender", "trial", "with", "loss"], rows, left=1)


def _summary(results: Json) -> str:
    """Returns the README's table: the baseline and the 1-bit optimizer, one line per setting and number of ranks."""
    rows, shown = [], []
    for setting in _with_runs(results):
        entries = [setting["contenders"].get(name) for name in README_CONTENDERS]
        for ranks in sorted({run["ranks"] for entry in entries if entry for run in entry["runs"]}):
            if all(_losses(entry, ranks) for entry in entries):
                rows.append(_summary_row(setting, ranks, *entries))
                shown += entries
    if not rows:
        return "No results have been written yet."
    headings = ["data", "model, tokens", "ranks", "dense", "sign+ef", "change", "bytes, run", "after warm-up"]
    table = _table(headings, rows, left=2)
    return "\n".join([_summary_conditions(shown), "", *table, *_note_on_processors(rows)])


def _summary_conditions(entries: Sequence[Json]) -> str:
    runs = [run for entry in entries for run in entry["runs"] if "torch" in run]
    return (
        f"LLaMAs from scratch; {_join(entry['trials_each'] for entry in entries)} trials per contender, on other data "
        f"and another seed; eval loss by seed, and the change of its mean; {_machines(runs)}, torch "
        f"{_join(run['torch'] for run in runs)}."
    )


def _machines(runs: Sequence[Json]) -> str:
    return _join(f"{run['machine']['processor']}, {run['machine']['cores']} cores" for run in runs)


def _summary_row(setting: Json, ranks: int, dense: Json, entry: Json) -> list[str]:
    tokens = f"{setting['steps'] * setting['tokens_per_step'] / 1e6:.1f} M"
    model = f"{_parameters(setting)}, {tokens}"
    base, other = _losses(dense, ranks), _losses(entry, ranks)
    seeds = sorted(base | other)
    losses = [_all_losses(base, seeds), _all_losses(other, seeds)]
    return [setting["title"], model, str(ranks), *losses, _change(entry, dense, ranks), *_fewer_bytes(entry, ranks)]


def _with_runs(results: Json) -> list[Json]:
    return [s for s in results["settings"].values() if any(entry["runs"] for entry in s["contenders"].values())]


def _losses(entry: Json | None, ranks: int) -> dict[int, float | None]:
    """Returns the losses by seed; None where the run diverged."""
    return {run["seed"]: run["eval_loss"] for run in (entry["runs"] if entry else []) if run["ranks"] == ranks}


def _change(entry: Json, dense: Json | None, ranks: int) -> str:
    """Returns the change of the mean over the seeds that both have, marked where a pair was trained on different
    processors; a dash where there is none, or where one diverged."""
    losses, base = _losses(entry, ranks), _losses(dense, ranks)
    common = [seed for seed in losses if seed in base]
    if not common or any(None in (losses[seed], base[seed]) for seed in common):
        return "-"
    ours, theirs = _processors(entry, ranks), _processors(dense, ranks)
    mark = f" {_OTHER_PROCESSOR}" if any(ours[seed] != theirs[seed] for seed in common) else ""
    change = mean(losses[seed] for seed in common) / mean(base[seed] for seed in common) - 1
    return f"{100 * change:+.1f} %{mark}".replace("-", "−")


_OTHER_PROCESSOR = "†"


def _note_on_processors(rows: Sequence[Sequence[str]]) -> list[str]:
    if not any(cell.endswith(_OTHER_PROCESSOR) for row in rows for cell in row):
        return []
    return [
        "",
        f"{_OTHER_PROCESSOR} Some of these pairs were trained on different processors, which alone has changed a loss "
        f"by 1.4 %.",
    ]


def _processors(entry: Json, ranks: int) -> dict[int, str]:
    return {run["seed"]: run["machine"]["processor"] for run in entry["runs"] if run["ranks"] == ranks}


def _fewer_bytes(entry: Json, ranks: int) -> list[str]:
    """Returns the bytes as fractions of float32's: of the whole run and after the warm-up."""
    runs = [run for run in entry["runs"] if run["ranks"] == ranks]
    known = [[run[name] for run in runs if run.get(name)] for name in _RATIOS]  # none after it, where all is warm-up
    ratios = [mean(of_one) if of_one else None for of_one in known]
    return ["-" if ratio is None else f"1/{ratio:.1f}" if ratio > 1.05 else "1" for ratio in ratios]


_RATIOS = ("compression_ratio", "compression_ratio_after_warmup")
_SHORT = {"beta1": "β1", "beta2": "β2"}


def _knobs(trial: Json) -> Json:
    return {name: value for name, value in trial.items() if name != "eval_loss"}


def _point(point: Json) -> str:
    return ", ".join(f"{_SHORT.get(name, name)} {value:g}" for name, value in point.items())


def _all_losses(losses: dict[int, float | None], seeds: Sequence[int]) -> str:
    return " / ".join(_loss(losses[seed]) if seed in losses else "-" for seed in seeds)


def _loss(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3f}"


def _parameters(setting: Json) -> str:
    runs = [run for entry in setting["contenders"].values() for run in entry["runs"] if "parameters" in run]
    return _join(f"{run['parameters'] / 1e6:.1f} M" for run in runs)


def _join(values: Iterable[object]) -> str:
    """Joins the different values, in order of appearance."""
    return " and ".join(dict.fromkeys(map(str, values)))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Returns a table in Markdown with its first `left` columns aligned to the left."""
    rule = ["---"] * left + ["--:"] * (len(headings) - left)
    return ["| " + " | ".join(row) + " |" for row in (headings, rule, *rows)]
