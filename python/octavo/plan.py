# SPDX-License-Identifier: Apache-2.0
"""Reads the arguments ``plan`` and ``seed`` of public calls."""

from numbers import Integral

from octavo._C import Plan


def as_plan(plan: str | Plan) -> Plan:
    """Returns a plan as it is, and makes an ``octavo.Plan`` of its text. Raises TypeError for anything else, ValueError
    for a text that is no plan."""
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str):
        raise TypeError(f"[plan] expected an octavo.Plan or its text, such as 'sign+ef', got {type(plan).__name__}")
    return Plan(plan)


def require_seed(seed: int, where: str) -> None:
    """Raises ValueError for what is no seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, Integral) and 0 <= seed < 2**64:
        return
    raise ValueError(f"[{where}] seed must be an integer from 0 to 2^64 - 1, the same on all ranks, got {seed!r}")
