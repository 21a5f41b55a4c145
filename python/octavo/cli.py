# SPDX-License-Identifier: Apache-2.0
"""The commands of `octavo`; `octavo.__main__` runs them.

Exit status: 0 done, 1 failed, 2 the options make no sense, 128 + N stopped by signal N. Ranks that torchrun has started
also end with 70, where only this rank failed, and with 75, where it lost another.
"""

from __future__ import annotations

import os
import signal
from typing import Annotated, NoReturn

import typer

import octavo
from octavo.info import info
from octavo.startup import quick_imports
from octavo.train.cli import train

_HELP = "Trains the same model with a fraction of the bytes."

app = typer.Typer(name="octavo", help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(train)
app.command()(info)


def _print_cmake_dir(asked: bool) -> None:
    if asked:
        typer.echo(octavo.cmake_dir())
        raise typer.Exit()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(octavo.__version__)
        raise typer.Exit()


_CMAKE_DIR = typer.Option(
    "--cmake-dir", callback=_print_cmake_dir, is_eager=True, help="Print the folder for find_package(octavo)."
)
_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")


@app.callback()
def root(
    cmake_dir: Annotated[bool, _CMAKE_DIR] = False,
    version: Annotated[bool, _VERSION] = False,
) -> None:
    """Trains the same model with a fraction of the bytes."""


_PASSED_ON = dict(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})


@app.command(**_PASSED_ON)
def bench(context: typer.Context) -> None:
    """Measure kernels or training steps here: `octavo bench --help`."""
    # Imported only now: the benchmarks need more than the other commands do.
    with quick_imports():
        from octavo.bench import cli as bench_cli

    _main(bench_cli.app, context.args, "octavo bench")


@app.command(**_PASSED_ON)
def advise(context: typer.Context) -> None:
    """Say which plan is fastest on this machine and link: `octavo advise --help`."""
    with quick_imports():
        from octavo.bench import advise_cli

    _main(advise_cli.app, context.args, "octavo advise")


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def _main(measures: typer.Typer, arguments: list[str], name: str) -> None:
    """Runs a command that may start ranks and hosts. A signal that ends it ends them, too, as ^C does. Further signals
    are ignored then: a closed terminal sends several, and the second one would interrupt the clean-up."""
    ended_by: list[signal.Signals] = []

    def interrupt(number: int, _: object) -> NoReturn:
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN)
        ended_by.append(signal.Signals(number))
        raise KeyboardInterrupt

    if not os.environ.get("RANK"):  # a rank itself ends at once
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, interrupt)
    try:
        typer.main.get_command(measures).main(args=arguments, prog_name=name)
    except SystemExit:
        if not ended_by:
            raise
        typer.echo(f"error: [cli] stopped by {ended_by[0].name}", err=True)
        raise SystemExit(128 + ended_by[0]) from None
