# SPDX-License-Identifier: Apache-2.0
"""Where the commands print their tables."""

from __future__ import annotations

import io
import sys

from rich.console import Console

_WIDTH_OF_A_FILE = 140
"""Where no terminal says how wide it is: that of the tables, with their words whole."""


def make_console() -> Console:
    """Prints to stdout, whatever characters that can take: an untrained model writes any."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
