# SPDX-License-Identifier: Apache-2.0
"""The machine on which a benchmark runs."""

import platform
from pathlib import Path
from typing import Any

from octavo.cores import usable_cores


def machine() -> dict[str, Any]:
    """Describes the machine on which this process runs."""
    return {"processor": processor(), "cores": usable_cores(), "system": f"{platform.system()} {platform.machine()}"}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
