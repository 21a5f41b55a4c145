# SPDX-License-Identifier: Apache-2.0
"""ZeRO in the graphs that ``torch.compile`` makes of a model: passes put gathers and reductions into them."""

from octavo.zero.compile_config import CompileConfig, compile_config
from octavo.zero.compiled.compiler import ZeroCompiler, require_compilable
from octavo.zero.compiled.graph import Profile, ZeroGraph
from octavo.zero.compiled.memory import Memory
from octavo.zero.compiled.passes import Contract, Edit, Schedule, Setting, default_schedule

__all__ = [
    "CompileConfig",
    "Contract",
    "Edit",
    "Memory",
    "Profile",
    "Schedule",
    "Setting",
    "ZeroCompiler",
    "ZeroGraph",
    "compile_config",
    "default_schedule",
    "require_compilable",
]
