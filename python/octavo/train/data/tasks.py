# SPDX-License-Identifier: Apache-2.0
"""The bundled data set: short instruction tasks whose one right answer can be checked.

The records are drawn, not stored: the same count gives the same records on every machine. They range from what a model
of a million parameters learns in a minute (copying, choosing, case) to what it cannot learn (products of numbers of
three digits). So the answers become right one kind after another, and the loss does not end near 0, where small
differences between two runs would look large.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, mul

from octavo.train.data.rng import Rng

NAME = "octavo-tasks"
COUNT = 16_000
DRAW = 1
"""The draw that `octavo train` takes without `--data`."""

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD_LIST = (
    "ant bee bird book box cat cow cup dog door egg fish fox gold hat hen hill key king lake lamp leaf map "
    "milk moon owl pen pig rain ring road rose salt sand ship snow star sun tree wind"
)
WORDS = _WORD_LIST.split()

Blanks = dict[str, object]
Draw = Callable[[Rng], tuple[Blanks, str]]


@dataclass(frozen=True)
class Task:
    """One kind of task: the ways to word it, and how its blanks and its answer are drawn.

    `templates` are "instruction | input", or only the instruction, with the blanks in braces; `draw` gives
    the blanks and the answer; a task comes `share` times as often as one with share 1.
    """

    name: str
    templates: tuple[str, ...]
    draw: Draw
    share: int = 1


def _two_numbers(low: int, high: int, answer: Callable[[int, int], int]) -> Draw:
    def draw(rng: Rng) -> tuple[Blanks, str]:
        a, b = rng.between(low, high), rng.between(low, high)
        return {"a": a, "b": b}, str(answer(a, b))

    return draw


def _items(pool: Sequence[str], count: int, answer: Callable[[list[str]], object]) -> Draw:
    """Returns a draw of different items of the pool. In an answer that is a list, its items are separated by spaces."""

    def draw(rng: Rng) -> tuple[Blanks, str]:
        items = rng.sample(pool, count)
        said = answer(items)
        text = " ".join(map(str, said)) if isinstance(said, list) else str(said)
        return {"items": " ".join(items), "ITEMS": " ".join(items).upper()}, text

    return draw


def _reversed(items: list[str]) -> list[str]:
    return items[::-1]


def _parity(rng: Rng) -> tuple[Blanks, str]:
    a = rng.below(1000)
    return {"a": a}, "odd" if a % 2 else "even"


def _has_letter(rng: Rng) -> tuple[Blanks, str]:
    word = rng.choice(WORDS)
    # Half of the letters are taken from the word itself, so that "yes" and "no" come about as often.
    letter = rng.choice(word if rng.below(2) else LETTERS)
    return {"word": word, "letter": letter}, "yes" if letter in word else "no"


def _count(rng: Rng) -> tuple[Blanks, str]:
    count = rng.between(1, 6)
    return {"items": " ".join(rng.sample(WORDS, count))}, str(count)


def _twice(rng: Rng) -> tuple[Blanks, str]:
    items = rng.sample(WORDS, 3)
    again = rng.choice(items)
    items.insert(rng.below(4), again)
    return {"items": " ".join(items)}, again


TASKS = (
    Task("add", ("Add the numbers. | {a} + {b}", "What is {a} plus {b}?"), _two_numbers(10, 99, add)),
    Task(
        "multiply",
        ("Multiply the numbers. | {a} * {b}", "What is {a} times {b}?"),
        _two_numbers(100, 999, mul),
        share=2,
    ),
    Task(
        "largest",
        ("Which number is the largest? | {items}", "Give the largest number. | {items}"),
        _items(DIGITS, 3, max),
    ),
    Task(
        "smallest",
        ("Which number is the smallest? | {items}", "Give the smallest number. | {items}"),
        _items(DIGITS, 3, min),
    ),
    Task("parity", ("Is the number odd or even? | {a}", "Is {a} odd or even?"), _parity),
    Task(
        "sort numbers",
        ("Sort the numbers. | {items}", "Put these numbers in order. | {items}"),
        _items(DIGITS, 3, sorted),
    ),
    Task(
        "reverse numbers",
        ("Reverse the numbers. | {items}", "Write the numbers backwards. | {items}"),
        _items(DIGITS, 3, _reversed),
    ),
    Task(
        "sort letters",
        ("Sort the letters. | {items}", "Put these letters in order. | {items}"),
        _items(LETTERS[:10], 3, sorted),
    ),
    Task(
        "reverse letters",
        ("Reverse the letters. | {items}", "Write the letters backwards. | {items}"),
        _items(LETTERS[:10], 3, _reversed),
    ),
    Task(
        "sort words",
        ("Sort the words. | {items}", "Put these words in order. | {items}"),
        _items(WORDS, 2, sorted),
    ),
    Task(
        "swap words",
        ("Swap the words. | {items}", "Write the words in reverse order. | {items}"),
        _items(WORDS, 2, _reversed),
    ),
    Task("repeat", ("Repeat the words. | {items}", "Copy the text. | {items}"), _items(WORDS, 3, list)),
    Task(
        "first",
        ("Which word is the first one? | {items}", "Give the first word. | {items}"),
        _items(WORDS, 3, lambda items: items[0]),
    ),
    Task(
        "middle",
        ("Which word is in the middle? | {items}", "Give the second word. | {items}"),
        _items(WORDS, 3, lambda items: items[1]),
    ),
    Task(
        "last",
        ("Which word is the last one? | {items}", "Give the last word. | {items}"),
        _items(WORDS, 3, lambda items: items[2]),
    ),
    Task("twice", ("Which word comes twice? | {items}", "Find the word that is repeated. | {items}"), _twice),
    Task("count", ("How many words are there? | {items}", "Count the words. | {items}"), _count),
    Task(
        "upper case",
        ("Write the letters in upper case. | {items}", "Write {items} in capitals."),
        _items(LETTERS[:10], 3, lambda items: [item.upper() for item in items]),
    ),
    Task(
        "lower case",
        ("Write the letters in lower case. | {ITEMS}", "Write {ITEMS} in small letters."),
        _items(LETTERS[:10], 3, list),
    ),
    Task(
        "initials",
        ("What are the first letters? | {items}", "Give the initials of {items}."),
        _items(WORDS, 2, lambda items: [item[0] for item in items]),
    ),
    Task(
        "last letters",
        ("What are the last letters? | {items}", "Give the last letters of {items}."),
        _items(WORDS, 2, lambda items: [item[-1] for item in items]),
    ),
    Task(
        "lengths",
        ("How long are the words? | {items}", "Count the letters in {items}."),
        _items(WORDS, 2, lambda items: [len(item) for item in items]),
    ),
    Task(
        "has letter",
        ("Is the letter {letter} in the word? | {word}", "Does {word} contain {letter}?"),
        _has_letter,
    ),
)


def named(name: str) -> tuple[int, int] | None:
    """Returns the draw and the count of `tasks:DRAW` or `tasks:DRAW:COUNT`, the bundled tasks drawn anew; None for any
    other name."""
    found = re.fullmatch(r"tasks:([0-9]+)(?::([0-9]+))?", name)
    return (int(found[1]), int(found[2] or COUNT)) if found else None


def records(count: int = COUNT, draw: int = DRAW) -> list[dict[str, str]]:
    """Returns `count` Alpaca records (instruction, input, output); the same question may come more than once.

    Each `draw` gives other records of the same kinds.
    """
    rng = Rng(NAME, draw)
    turns = [task for task in TASKS for _ in range(task.share)]
    return [record(rng.choice(turns), rng) for _ in range(count)]


def record(task: Task, rng: Rng) -> dict[str, str]:
    """Returns one record of `task`, drawn from `rng`."""
    template = rng.choice(task.templates)
    blanks, answer = task.draw(rng)
    instruction, _, given = template.format(**blanks).partition(" | ")
    return {"instruction": instruction, "input": given, "output": answer}
