# SPDX-License-Identifier: Apache-2.0
"""What a run prints at its end: the table of figures and a few answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo.train.evaluate import Answer

_LONGEST_CELL = 160


def print_summary(console: Console, summary: dict[str, Any], out: Path) -> None:
    """Prints the closing table of a run."""
    table = Table(title=Text(f"{summary['model']} on {summary['data']}"), show_header=False)
    for name, value in _rows(summary):
        table.add_row(name, Text(value))
    console.print(table)
    console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


def print_answers(console: Console, answers: list[Answer]) -> None:
    """Prints the trained model's answers to a few held-out questions."""
    table = Table(title="answers to held-out questions", show_lines=False)
    for heading in ("question", "model", "expected"):
        table.add_column(heading, overflow="fold", max_width=60)
    for answer in answers:
        question = " | ".join(part for part in (answer.instruction, answer.input) if part)
        style = "green" if answer.correct else "yellow"
        table.add_row(Text(_line(question)), Text(_line(answer.answer), style=style), Text(_line(answer.expected)))
    console.print(table)


def _line(text: str) -> str:
    """Returns `text` on one line and shortened if it is long: an untrained model repeats line breaks by the dozen. It
    makes control characters, too, which could change a terminal's state: they are replaced."""
    words = "".join("\ufffd" if category(one) == "Cc" else one for one in " ".join(text.split()))
    return words if len(words) <= _LONGEST_CELL else words[: _LONGEST_CELL - 1] + "…"


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rounds = f" every {summary['outer']} steps" if summary["outer"] else ""
    shares = f", ZeRO-{summary['zero_stage']}" if summary["zero_stage"] else ""
    rows = [
        ("plan, optimizer", f"{summary['plan']}{rounds}, {summary['optimizer']}{shares}"),
        ("ranks, device", f"{summary['world_size']}, {summary['device']} ({summary['precision']})"),
        ("parameters", f"{summary['parameters']:,}"),
        ("steps", f"{summary['steps']:,} ({summary['skipped_steps']} skipped)"),
        ("loss, first to last", f"{number(summary['first_loss'])} to {number(summary['final_loss'])}"),
        ("eval loss", number(summary["eval_loss"])),
        ("speed", f"{summary['tokens_per_s']:,.0f} tokens/s, {summary['step_s'] * 1e3:.0f} ms per step"),
        (
            "sent per step",
            f"{size(summary['wire_bytes_per_step'])} of {size(summary['dense_bytes_per_step'])} dense",
        ),
        ("compression", ratio_text(summary)),
        ("peak host memory", size(summary["peak_host_bytes"])),
    ]
    if summary["accuracy"] is not None:
        rows.insert(6, ("exact answers", f"{summary['accuracy']:.1%}"))
    return rows


def ratio_text(summary: dict[str, Any]) -> str:
    """Returns how many times fewer bytes than fp32 were sent, over the whole run and after the warm-up."""
    whole, late = summary["compression_ratio"], summary["compression_ratio_after_warmup"]
    if not summary["wire_bytes_per_step"]:
        return "nothing sent"
    return f"{whole:.1f}x" if late is None or late == whole else f"{whole:.1f}x ({late:.1f}x after the warm-up)"


def number(value: float | None) -> str:
    """Returns a loss as text."""
    return "-" if value is None else f"{value:.4f}"


def size(count: float) -> str:
    """Returns bytes as text, in powers of 1000."""
    unit = "B"
    for larger in ("kB", "MB", "GB"):
        if count < 1000:
            break
        count, unit = count / 1000, larger
    return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
