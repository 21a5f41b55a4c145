# SPDX-License-Identifier: Apache-2.0
"""The console to which the commands print their tables."""

from __future__ import annotations

import io
import sys

from rich.console import Console

_WIDTH_OF_A_FILE = 140
"""The width where no terminal tells one, in characters: tables fit into it without breaking words."""


def make_console() -> Console:
    """Returns a console that prints to stdout. Characters that stdout cannot encode are replaced, because an untrained
    model writes any."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
