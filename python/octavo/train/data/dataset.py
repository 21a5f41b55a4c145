# SPDX-License-Identifier: Apache-2.0
"""The data set of a run, and the tenth of it that the model never sees."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from octavo.durable_files import printable
from octavo.train.data import tasks
from octavo.train.data.records import Example, failure, parse, read_file
from octavo.train.data.rng import Rng

__all__ = ["Corpus", "Example", "load_corpus"]

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """A data set in two splits: no question of `held_out` (with all that precedes it) is in `train`.

    `checkable`: each question has one short right answer, so exact match means something.
    `fingerprint`: SHA-256 of the content, with its kind, in hex; it depends neither on the name nor on the seed of the
    split.
    """

    name: str
    train: list[Example]
    held_out: list[Example]
    checkable: bool
    fingerprint: str


def load_corpus(path: Path | None, *, seed: int) -> Corpus:
    """Returns the data set at `path`, or the bundled tasks where it is None or a name that `tasks.named` reads. `seed`
    decides what is held out.

    Raises FileNotFoundError, another OSError or ValueError, with one sentence that names the file and the place in it.
    """
    drawn = (tasks.DRAW, tasks.COUNT) if path is None else tasks.named(str(path))
    if drawn:
        draw, count = drawn
        examples = [Example(**record) for record in tasks.records(count, draw)]
        content = json.dumps([vars(example) for example in examples]).encode()
        name, place, kind = tasks.NAME + str(path or "").removeprefix("tasks"), "the bundled tasks", "tasks"
    else:
        _refuse_half_a_draw(path)
        content, name, place, kind = read_file(path), printable(path.name), str(path), path.suffix.lower()
        examples = parse(content, path)
        if any(one.system or one.history for one in examples) and re.search(rb'"(system|history)"\s*:', content):
            kind += "+context"  # runs of versions that did not read these fields do not continue with them
    train, held_out = _split(examples, seed, place)
    # The kind is in the hash, because the same bytes are other examples in another kind of file.
    return Corpus(name, train, held_out, drawn is not None, hashlib.sha256(kind.encode() + content).hexdigest())


def _refuse_half_a_draw(path: Path) -> None:
    name = str(path)
    if not (name == "tasks" or name.startswith("tasks:")) or path.exists():
        return
    trouble = "neither a file nor a draw of the bundled tasks, which is tasks:DRAW or tasks:DRAW:COUNT: tasks:2:500"
    hint = "" if name != "tasks" else ", or leave --data out for the draw that is used by default"
    raise ValueError(f"[train.dataset] {path} is {trouble}{hint}")


def _split(examples: list[Example], seed: int, place: str) -> tuple[list[Example], list[Example]]:
    """Holds out a tenth of the different questions; equal ones, and chats that begin alike, stay on one side."""
    if not examples:
        raise failure("the data set is empty; it needs at least 2 different records", place)
    groups: dict[object, list[Example]] = {}
    for example in examples:
        text = example.output if example.is_text else ""
        first = example.history[0][0] if example.history else example.instruction
        asked = (example.system, first, "" if example.history else example.input, text)
        groups.setdefault(asked, []).append(example)
    if len(groups) < 2:
        is_text, is_one = examples[0].is_text, len(examples) == 1
        of_text = "the text is a single piece" if is_one else f"all {len(examples)} pieces of the text are the same"
        trouble, what = (of_text, "pieces") if is_text else ("all records ask the same", "ones")
        hint = "; a .txt file is cut into pieces, a record of a .jsonl file is one" if is_text and is_one else ""
        raise failure(f"{trouble}; at least 2 different {what} are needed, of which 1 is held out{hint}", place)
    keys = list(groups)
    count = max(1, round(HELD_OUT_SHARE * len(keys)))
    held = {keys[i] for i in Rng("held out", seed).permutation(len(keys))[:count]}
    train = [example for key in keys if key not in held for example in groups[key]]
    held_out = [example for key in keys if key in held for example in groups[key]]
    return train, held_out
