# SPDX-License-Identifier: Apache-2.0
"""The bundled tasks: they are the same on every machine, they vary, and every answer is the right one."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.train.data import tasks
from octavo.train.data.dataset import load_corpus
from octavo.train.data.rng import Rng

pytestmark = pytest.mark.timeout(30)

GOLDEN = "54cf1f0a0ef2df33182ec3e3e9af8243899d799436a1ec76ae994650cef6e0c3"
STREAM = [402, 49, 714, 520, 829, 899]

Named = list[str]
Solver = Callable[[str, Named, Named, list[int]], object]

# These find the answers only from the text: (text, words of the list in it, single letters, numbers) -> answer.
SOLVERS: dict[str, Solver] = {
    "add": lambda text, words, letters, numbers: numbers[0] + numbers[1],
    "multiply": lambda text, words, letters, numbers: numbers[0] * numbers[1],
    "largest": lambda text, words, letters, numbers: max(numbers),
    "smallest": lambda text, words, letters, numbers: min(numbers),
    "parity": lambda text, words, letters, numbers: ("even", "odd")[numbers[0] % 2],
    "sort numbers": lambda text, words, letters, numbers: sorted(numbers),
    "reverse numbers": lambda text, words, letters, numbers: numbers[::-1],
    "sort letters": lambda text, words, letters, numbers: sorted(letters),
    "reverse letters": lambda text, words, letters, numbers: letters[::-1],
    "sort words": lambda text, words, letters, numbers: sorted(words),
    "swap words": lambda text, words, letters, numbers: [words[1], words[0]],
    "repeat": lambda text, words, letters, numbers: words,
    "first": lambda text, words, letters, numbers: words[0],
    "middle": lambda text, words, letters, numbers: words[1],
    "last": lambda text, words, letters, numbers: words[-1],
    "twice": lambda text, words, letters, numbers: next(word for word in words if words.count(word) == 2),
    "count": lambda text, words, letters, numbers: len(words),
    "upper case": lambda text, words, letters, numbers: [letter.upper() for letter in letters],
    "lower case": lambda text, words, letters, numbers: [letter.lower() for letter in letters],
    "initials": lambda text, words, letters, numbers: [word[0] for word in words],
    "last letters": lambda text, words, letters, numbers: [word[-1] for word in words],
    "lengths": lambda text, words, letters, numbers: [len(word) for word in words],
    "has letter": lambda text, words, letters, numbers: "yes" if letters[0] in words[0] else "no",
}


def solve(name: str, record: dict[str, str]) -> str:
    text = f"{record['instruction']} {record['input']}"
    pieces = re.findall(r"[A-Za-z]+", text)
    words = [piece for piece in pieces if piece.lower() in tasks.WORDS]
    letters = [piece for piece in pieces if len(piece) == 1]
    said = SOLVERS[name](text, words, letters, [int(number) for number in re.findall(r"\d+", text)])
    return " ".join(map(str, said)) if isinstance(said, list) else str(said)


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda task: task.name)
def test_every_answer_is_right(task: tasks.Task) -> None:
    rng = Rng("test", task.name)
    drawn = [tasks.record(task, rng) for _ in range(300)]
    assert [record["output"] for record in drawn] == [solve(task.name, record) for record in drawn]
    assert len({record["output"] for record in drawn}) > 1, "an answer that never changes teaches nothing"


def test_every_task_has_several_ways_to_be_put() -> None:
    assert all(len(set(task.templates)) >= 2 for task in tasks.TASKS)
    assert len({template for task in tasks.TASKS for template in task.templates}) == sum(
        len(task.templates) for task in tasks.TASKS
    )


def test_the_records_are_the_same_on_every_machine() -> None:
    content = json.dumps(tasks.records(200)).encode()
    assert hashlib.sha256(content).hexdigest() == GOLDEN


def test_fewer_records_are_the_first_of_more() -> None:
    assert tasks.records(50) == tasks.records(100)[:50]


def test_records_are_alpaca_records_with_short_answers() -> None:
    for record in tasks.records(500):
        assert set(record) == {"instruction", "input", "output"}
        assert record["instruction"].strip() and 1 <= len(record["output"]) <= 20
        assert "{" not in record["instruction"] + record["input"]


def test_the_words_are_all_different() -> None:
    assert len(set(tasks.WORDS)) == len(tasks.WORDS) and all(word.islower() for word in tasks.WORDS)


def test_the_stream_of_draws_is_the_same_on_every_machine() -> None:
    rng = Rng("octavo", 7)
    assert [rng.below(1000) for _ in range(6)] == STREAM
    assert sorted(rng.permutation(100)) == list(range(100))


def test_draws_cover_their_range() -> None:
    rng = Rng("range")
    assert {rng.between(-1, 2) for _ in range(200)} == {-1, 0, 1, 2}
    assert len(set(rng.sample(range(10), 4))) == 4


def test_another_draw_is_of_the_same_kinds_and_has_other_records():
    ours, others = tasks.records(500), tasks.records(500, draw=1000)
    assert ours == tasks.records(500, draw=tasks.DRAW)
    same = [record for record in others if record in ours]
    assert len(same) < 100  # some tasks have few questions
    assert tasks.named("tasks:1000") == (1000, tasks.COUNT) and tasks.named("tasks:2:50") == (2, 50)
    names = ("tasks.json", "tasks:", "tasks:x", "tasks:1:", "tasks:1:x", "my:7")
    assert [tasks.named(name) for name in names] == [None] * len(names)


def test_a_draw_is_a_data_set_that_can_be_checked():
    corpus, ours = load_corpus(Path("tasks:1000"), seed=0), load_corpus(None, seed=0)
    assert corpus.checkable and corpus.name == "octavo-tasks:1000"
    assert corpus.fingerprint != ours.fingerprint
    few = load_corpus(Path("tasks:1:300"), seed=0)
    assert few.name == "octavo-tasks:1:300" and len(few.train) + len(few.held_out) == 300
    assert {*few.train, *few.held_out} <= {*ours.train, *ours.held_out}
