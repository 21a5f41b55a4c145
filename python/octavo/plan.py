# SPDX-License-Identifier: Apache-2.0
"""Plans by name."""

from octavo._C import Plan


def as_plan(plan: str | Plan) -> Plan:
    """``octavo.Plan`` of a plan or its text. Raises TypeError for anything else, ValueError for an unknown text."""
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str):
        raise TypeError(f"[plan] expected an octavo.Plan or its text, such as 'sign+ef', got {type(plan).__name__}")
    return Plan(plan)
