# SPDX-License-Identifier: Apache-2.0
"""ZeRO's schedule in the graphs that ``torch.compile`` makes of a model."""

from octavo.zero.compile_config import CompileConfig, compile_config
from octavo.zero.compiled.compiler import ZeroCompiler
from octavo.zero.compiled.graph import Memory, Profile, ZeroGraph
from octavo.zero.compiled.passes import Contract, Edit, Schedule, default_schedule

__all__ = [
    "CompileConfig",
    "Contract",
    "Edit",
    "Memory",
    "Profile",
    "Schedule",
    "ZeroCompiler",
    "ZeroGraph",
    "compile_config",
    "default_schedule",
]
