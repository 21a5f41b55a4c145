# SPDX-License-Identifier: Apache-2.0
"""The command `octavo advise`; `advise.py` measures and words the advice."""

from typing import Annotated

import typer

from octavo.bench import defaults
from octavo.bench.linked_hosts import RATES
from octavo.bench.options import JsonFile, Rounds
from octavo.bench.output import measured_by_ranks, show

app = typer.Typer(add_completion=False)


@app.command()
def advise(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            help="Plans to choose from.",
            show_default=" ".join(defaults.ADVISE_PLANS),
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(min=2, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="Rows (tokens) per step and rank.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Linear layers of the model.")] = 24,
    width: Annotated[int, typer.Option(min=1, max=1 << 20, help="Inputs and outputs of each layer.")] = 1024,
    link: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(RATES)}: ranks on hosts of their own, joined at this rate. Needs root.",
            show_default="this machine as it is",
        ),
    ] = None,
    rounds: Rounds = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure this machine and its link, and say which plan is fastest here, or "dense" where dense is.

    Under torchrun on the hosts of a job it measures their link. `--rows` should match your training most closely: the
    more tokens a step has, the more of the exchange is hidden behind computing.
    """
    from octavo.bench import advise as bench
    from octavo.bench.ddp import Size
    from octavo.bench.ddp_jobs import check_plans
    from octavo.bench.jobs import check_links

    size, wanted = Size(rows, layers, width), plans or list(defaults.ADVISE_PLANS)

    def check() -> None:
        check_plans(wanted)
        check_links([link])

    report = measured_by_ranks(
        lambda: bench.measure_as_rank(wanted, rounds=rounds, size=size),
        lambda: bench.measure(wanted, nproc=nproc, rounds=rounds, size=size, link=link),
        nproc,
        json_file,
        check,
    )
    if report is None:
        return
    title = f"a step of {size.parameters / 1e6:.1f} M parameters on {report.ranks} ranks; alone: without communication"
    show(title, bench.as_dicts(report), bench.HEADINGS, json_file, bench.sentences(report), report.text())
