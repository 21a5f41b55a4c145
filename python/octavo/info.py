# SPDX-License-Identifier: Apache-2.0
"""`octavo info`: what runs here, and why the rest does not."""

from __future__ import annotations

import json
import os
import platform
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

import octavo
from octavo.accelerator.devices import CUDA_Accelerator, XPU_Accelerator
from octavo.console import make_console
from octavo.train.errors import EXIT_USAGE


def collect() -> dict[str, Any]:
    """Returns versions, this CPU, torch's devices and Octavo's back ends, as plain values for JSON.

    `absent_devices` has the kinds of torch's devices that are not here, and why. `backends` is a list of {name,
    available, reason}. The reason says why a back end is missing, or in which form it is there. Raises
    ValueError where OCTAVO_ISA or OCTAVO_BACKEND names an unknown one.
    """
    backends = [dict(backend) for backend in octavo._C.backends()]
    _check_wanted([backend["name"] for backend in backends])
    return {
        "octavo": octavo.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "isa": octavo._C.isa(),
        "threads": torch.get_num_threads(),
        "devices": _devices(),
        "absent_devices": _absent_devices(),
        "accelerator": _accelerator(),
        "backends": backends,
    }


def info(
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show versions, devices, and the back ends found here with the reason why each other one is missing."""
    try:
        facts = collect()
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    if json_:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = make_console()
    console.print(_facts_table(facts))
    console.print(_backends_table(facts["backends"]))


def _check_wanted(names: list[str]) -> None:
    wanted = os.environ.get("OCTAVO_BACKEND")
    if wanted is not None and wanted not in names:
        raise ValueError(f"[info.backend] OCTAVO_BACKEND must be one of {', '.join(names)}, not '{wanted}'")


def _accelerator() -> str:
    try:
        return octavo.get_accelerator().current_device_name()
    except (ValueError, NotImplementedError) as refused:  # the accelerator that the environment names is not here
        return str(refused)


def _devices() -> list[str]:
    devices = ["cpu"]
    for kind, module in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        count = module.device_count() if module.is_available() else 0
        devices += [f"{kind}:{index} {module.get_device_name(index)}" for index in range(count)]
    sycl = octavo._C.sycl  # not octavo.sycl, whose import makes the device sycl
    return devices + [f"sycl:{index} {sycl.facts(index).name}" for index in range(sycl.device_count())]


def _absent_devices() -> dict[str, str]:
    kinds = (CUDA_Accelerator(), XPU_Accelerator())
    return {kind.device_name(): kind.why_absent() for kind in kinds if not kind.is_available()}


def _facts_table(facts: dict[str, Any]) -> Table:
    table = Table(title="octavo", show_header=False)
    for name in ("octavo", "torch", "python", "system", "isa", "threads", "accelerator"):
        table.add_row(name, escape(str(facts[name])))
    table.add_row("devices", escape("\n".join(facts["devices"])))
    for kind, reason in facts["absent_devices"].items():
        table.add_row(f"no {kind}", escape(reason))
    return table


def _backends_table(backends: list[dict[str, Any]]) -> Table:
    table = Table("back end", "here", "how, or why not", title="back ends")
    for backend in backends:
        table.add_row(backend["name"], "yes" if backend["available"] else "no", escape(backend["reason"]))
    return table
