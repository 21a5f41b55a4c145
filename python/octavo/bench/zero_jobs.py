# SPDX-License-Identifier: Apache-2.0
"""`octavo bench zero` as a user calls it: starts the ranks of each job, on hosts joined at a given rate, and combines
their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from octavo.bench.hosts import UNSHAPED
from octavo.bench.jobs import check_links, run_job
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
) -> list[Row]:
    """Measures for every link the time of all contenders together, and the memory of each contender alone, which no
    link changes.

    Raises RuntimeError with the ranks' last error line where a job fails.
    """
    rows: list[Row] = []
    for link in links if what != MEMORY else ():
        of_link = _job([*contenders, f"--measure={TIME}", f"--rounds={rounds}", f"--model={model}"], nproc, link)
        rows += [replace(row, link=link or UNSHAPED) for row in of_link]
    if what == TIME:
        return rows
    names = dict.fromkeys(row.contender for row in rows) if rows else contenders
    alone = {name: _job([name, f"--measure={MEMORY}", f"--model={model}"], nproc, None)[0] for name in names}
    if not rows:
        return list(alone.values())
    of_memory = ("peak_bytes", "held_bytes", "of_share")
    return [replace(row, **{name: getattr(alone[row.contender], name) for name in of_memory}) for row in rows]


def measure_as_rank(contenders: Sequence[str], *, rounds: int, model: str, what: str) -> list[Row] | None:
    """Measures as one rank. Returns its rows on rank 0, None elsewhere."""
    if what == TIME:
        return measure_time(contenders, rounds, model)
    if what == MEMORY and len(contenders) == 1:
        return measure_memory(contenders[0], model)
    raise ValueError(
        "[bench.zero] under torchrun there is one set of processes, and memory is that of a process with one "
        "contender: use --measure time, or --measure memory with one contender"
    )


def _job(arguments: list[str], nproc: int, link: str | None) -> list[Row]:
    return [Row(**row) for row in json.loads(run_job(["bench", "zero", *arguments], nproc, link))]
