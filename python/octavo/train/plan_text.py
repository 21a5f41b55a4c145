# SPDX-License-Identifier: Apache-2.0
"""The texts that name plans together with rounds, or several plans."""

from dataclasses import dataclass

from octavo.train.errors import refuse


@dataclass(frozen=True)
class Rounds:
    """Rounds of `octavo.Outer` as a text names them: "outer:EVERY/PLAN" or "outer:EVERY:DELAY:FRAGMENTS/PLAN". None:
    the text does not name it."""

    every: int
    delay: int | None = None
    fragments: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """The options of `octavo train`, by name, that say the same."""
        named = {"outer": self.every, "outer_delay": self.delay, "outer_fragments": self.fragments}
        return {name: number for name, number in named.items() if number is not None}


def are_possible(every: int, delay: int, fragments: int) -> bool:
    """Whether rounds of ``every`` steps can have this delay and so many fragments."""
    return delay < every and 1 <= fragments <= every


def split_rounds(text: str) -> tuple[Rounds | None, str]:
    """Returns the rounds and the plan of "outer:20/sign+ef"; None and the plan where the text is only a plan. Raises
    ValueError."""
    if not text.startswith("outer:"):
        return None, text
    numbers, slash, plan = text.removeprefix("outer:").partition("/")
    parts = numbers.split(":")
    if not (slash and plan and len(parts) <= 3 and all(part.isdecimal() for part in parts) and int(parts[0]) > 0):
        refuse(
            f"'{text}' must be outer:H/PLAN, such as outer:20/sign+ef for rounds of 20 steps, or "
            f"outer:H:DELAY:FRAGMENTS/PLAN"
        )
    rounds = Rounds(*map(int, parts))
    fragments = 1 if rounds.fragments is None else rounds.fragments
    if not are_possible(rounds.every, rounds.delay or 0, fragments):
        refuse(
            f"'{text}' must have a delay below {rounds.every} and 1 to {rounds.every} fragments, as rounds of "
            f"{rounds.every} steps can have"
        )
    return rounds, plan


def parse_compare(text: str | None) -> tuple[str, ...]:
    """Returns `"dense,sign+ef"` as a tuple of plans. Raises ValueError where a plan is empty or named twice."""
    if text is None:
        return ()
    plans = tuple(part.strip() for part in text.split(","))
    if any(plan.startswith("zero") for plan in plans):
        refuse(f"--compare is of plans, with ZeRO for all of them or for none: give --zero a stage, not '{text}'")
    if not all(plans) or len(set(plans)) != len(plans):
        refuse(
            f"--compare must be different plans separated by commas, such as dense,sign+ef,outer:20/sign+ef, "
            f"not '{text}'"
        )
    return plans
