# SPDX-License-Identifier: Apache-2.0
"""`octavo bench zero` as a user calls it: starts the ranks of each job, on hosts joined at a given rate, and combines
their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from octavo.bench.jobs import check_links, rows_of_job
from octavo.bench.ranks import in_job
from octavo.bench.zero import Row, config_of, measure_memory, measure_time
from octavo.bench.zero_contenders import require_known

TIME, MEMORY, BOTH = "time", "memory", "both"
WHAT = (TIME, MEMORY, BOTH)


def check(contenders: Sequence[str], model: str, links: Sequence[str | None], what: str) -> None:
    """Raises ValueError for what cannot be measured."""
    for name in contenders:
        require_known(name)
    config_of(model)
    check_links(links)
    if what not in WHAT:
        raise ValueError(f"[bench.zero] --measure must be {TIME}, {MEMORY} or {BOTH}, not '{what}'")


def measure(
    contenders: Sequence[str], *, nproc: int, rounds: int, model: str, links: Sequence[str | None], what: str
) -> Iterator[list[Row]]:
    """Measures for every link the time of all contenders together, and the memory of each contender alone, which no
    link changes. Yields all rows so far whenever a job has ended.

    Raises RuntimeError with the ranks' last error line where a job fails.
    """
    rows: list[Row] = []
    for link in links if what != MEMORY else ():
        rows += _job([*contenders, f"--measure={TIME}", f"--rounds={rounds}", f"--model={model}"], nproc, link)
        yield rows
    if what == TIME:
        return
    for name in dict.fromkeys(row.contender for row in rows) if rows else dict.fromkeys(contenders):
        (alone,) = _job([name, f"--measure={MEMORY}", f"--model={model}"], nproc, None)
        if what == MEMORY:
            rows = [*rows, alone]
        else:
            rows = [_with_memory(row, alone) if row.contender == name else row for row in rows]
        yield rows


def _with_memory(row: Row, of_memory: Row) -> Row:
    names = ("peak_bytes", "held_bytes", "of_share")
    return replace(row, **{name: getattr(of_memory, name) for name in names})


def measure_as_rank(contenders: Sequence[str], *, rounds: int, model: str, what: str) -> list[Row] | None:
    """Measures as one rank. Returns its rows on rank 0, None elsewhere."""
    if what == TIME:
        return in_job(lambda: measure_time(contenders, rounds, model))
    if what == MEMORY and len(contenders) == 1:
        return in_job(lambda: [measure_memory(contenders[0], model)])
    raise ValueError(
        "[bench.zero] under torchrun there is one set of processes, and memory is measured in a process with one "
        "contender: use --measure time, or --measure memory with one contender"
    )


def _job(arguments: list[str], nproc: int, link: str | None) -> list[Row]:
    return rows_of_job(Row, ["bench", "zero", *arguments], nproc, link)
