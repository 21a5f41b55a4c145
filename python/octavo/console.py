# SPDX-License-Identifier: Apache-2.0
"""The console to which the commands print their tables."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

_WIDTH_OF_A_FILE = 140
"""The width where no terminal tells one, in characters: tables fit into it without breaking words."""


def make_console() -> Console:
    """Returns a console that prints to stdout. Characters that stdout cannot encode are replaced, because an untrained
    model writes any."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return Console(file=_Stdout())
    # never interactive, also where a variable such as FORCE_COLOR makes rich take a file for a terminal
    return Console(file=_Stdout(), width=_WIDTH_OF_A_FILE, force_interactive=False)


class _Stdout:
    """stdout, where what cannot be written, to a file on a full disk for example, is an OSError that says so. The error
    of a pipe that nobody reads is passed on, because rich ends the command then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        with _errors_shown():
            return sys.stdout.write(text)

    def flush(self) -> None:
        with _errors_shown():
            sys.stdout.flush()


@contextmanager
def _errors_shown() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"[console] what this command prints cannot be written to stdout: {error.strerror}") from error
