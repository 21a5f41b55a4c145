# SPDX-License-Identifier: Apache-2.0
"""The memory that training takes with each optimizer. Every case runs in a process of its own, so that none inherits a
peak.

A LLaMA in bfloat16 makes a few steps on batches of random tokens. There are three figures. That of the device's
allocator is what tensors must have there. That of managed memory counts memory that moves to the device and back, and
is there while it is used. That of the process includes the device's memory where the device is a processor. The others
are compared with AdamW with float32 states, as bitsandbytes has it; torch's AdamW keeps states in the parameters'
dtype, bfloat16 here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import octavo
from octavo.bench.jobs import DEADLINE_S
from octavo.train.model_sizes import MODELS

TORCH = "torch AdamW"
BASELINE = "AdamW"
RELEASED = ", gradient release"
CASES = (
    TORCH,
    BASELINE,
    "AdamW8bit",
    "PagedAdamW",
    "PagedAdamW8bit",
    f"PagedAdamW{RELEASED}",
    f"PagedAdamW8bit{RELEASED}",
)
"""Classes of octavo.optim, except for torch's."""


@dataclass(frozen=True)
class Row:
    """A line of the table. MiB are 2^20 bytes. A figure is None: of the device where that is the CPU, all where
    training did not fit."""

    optimizer: str
    device: str
    parameters: int
    fits: str  # "yes", "no"
    device_mib: float | None  # peak of the allocator, since before the model was made
    managed_mib: float | None  # peak of managed memory
    process_mib: float | None  # peak of what the process has in RAM, the interpreter and its libraries included
    loss: float | None  # of the last step
    saved_percent: float | None = None  # against AdamW's peak on the device


HEADINGS = {
    "optimizer": "optimizer",
    "fits": "fits",
    "device_mib": "device MiB",
    "saved_percent": "saved %",
    "managed_mib": "managed MiB",
    "process_mib": "process MiB",
    "loss": "last loss",
}


def measure(
    model: str,
    device: str | None = None,
    *,
    limit_mib: float | None = None,
    steps: int = 5,
    recompute: bool = False,
    cases: Sequence[str] = CASES,
) -> list[Row]:
    """Returns one row for each case. `device`: its type; None: sycl where it is there, else the CPU. `recompute`:
    layers keep only their inputs for backward, so that activations do not hide what gradient release saves.

    Raises ValueError for what cannot be measured and, where a case fails, RuntimeError with the last line of its error.
    """
    if model not in MODELS:
        raise ValueError(f"[bench.memory] --model must be {', '.join(MODELS[:-1])} or {MODELS[-1]}, not '{model}'")
    if device not in (None, "cpu", "sycl"):
        raise ValueError(f"[bench.memory] --device must be sycl or cpu, not '{device}'")
    status = octavo._C.backend_status("sycl")
    chosen = device or ("sycl" if status["available"] else "cpu")
    if chosen == "sycl" and not status["available"]:
        raise ValueError(f"[bench.memory] --device sycl is not here: {status['reason']}")
    if limit_mib is not None and chosen == "cpu":
        raise ValueError("[bench.memory] --limit is for a device with memory of its own: use --device sycl")
    options = dict(model=model, device=chosen, limit_mib=limit_mib, steps=steps, recompute=recompute)
    return with_savings([_in_a_process(case, options) for case in cases])


def with_savings(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with how much less each needs on the device than AdamW."""
    whole = next((row.device_mib for row in rows if row.optimizer == BASELINE), None)
    return [
        replace(row, saved_percent=100 * (1 - row.device_mib / whole)) if whole and row.device_mib else row
        for row in rows
    ]


def title(model: str, rows: Sequence[Row]) -> str:
    return f"training {model}, {rows[0].parameters:,} parameters in bfloat16, on {rows[0].device}"


def _in_a_process(case: str, options: dict[str, object]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "row.json"
        arguments = json.dumps({"case": case, **options})
        command = [sys.executable, "-m", "octavo.bench.memory_case", arguments, str(report)]
        pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            done = subprocess.run(command, **pipes, check=False, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"[bench.memory] {case} on {options['device']} was not finished after {DEADLINE_S / 3600:.0f} hours"
            ) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError(f"[bench.memory] {case} on {options['device']} has failed: {lines[-1]}")
        return Row(**json.loads(report.read_text()))
