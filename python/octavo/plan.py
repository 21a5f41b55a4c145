# SPDX-License-Identifier: Apache-2.0
"""Reads arguments that public calls have in common: ``plan``, ``seed`` and numbers, also those of numpy."""

import math
from numbers import Integral, Real

from octavo._C import Plan


def as_plan(plan: str | Plan) -> Plan:
    """Returns a plan as it is, and makes an ``octavo.Plan`` of its text. Raises TypeError for anything else, ValueError
    for a text that is no plan."""
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str):
        raise TypeError(
            f"[plan.as_plan] expected an octavo.Plan or its text, such as 'sign+ef', got {type(plan).__name__}"
        )
    return Plan(plan)


def require_seed(seed: int, where: str) -> None:
    """Raises ValueError for what is no seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, Integral) and 0 <= seed < 2**64:
        return
    raise ValueError(f"[{where}] seed must be an integer from 0 to 2^64 - 1, the same on all ranks, got {seed!r}")


def is_whole_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) < math.inf
