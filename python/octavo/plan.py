# SPDX-License-Identifier: Apache-2.0
"""Plans as arguments of public calls."""

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
