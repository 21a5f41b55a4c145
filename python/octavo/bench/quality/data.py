# SPDX-License-Identifier: Apache-2.0
"""The data of each setting, in two parts: one to tune on, one to report on. No record of a file is in both parts."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.durable_files import write_text
from octavo.train.data.rng import Rng

TUNING_SHARE = 1 / 3
"""The share of the records of alpaca_en_demo.json to tune on."""
TUNING_CHARACTERS, REPORTED_CHARACTERS = 5_000_000, 19_000_000
"""The characters of the corpus to tune on and to report on: about an epoch of a trial, and of a run."""
LONGEST_FILE_CHARACTERS = 100_000
"""Longer files of the corpus are tables rather than code."""

Record = dict[str, str]
Parts = tuple[list[Record], list[Record]]
"""Records to tune on, and records to report on."""


@dataclass(frozen=True)
class DataSet:
    """A data set. `make` draws both parts, given --alpaca's file; None: the bundled tasks, which need no file. `count`:
    the number of their records, where it differs from that of `octavo train`."""

    name: str
    make: Callable[[Path | None], Parts] | None
    count: int | None = None

    def tuning(self, folder: Path) -> str:
        """Returns what `octavo train --data` takes for a trial."""
        if self.make:
            return str(folder / f"{self.name}-tuning.jsonl")
        return f"tasks:1000:{self.count}" if self.count else "tasks:1000"

    def reported(self, folder: Path) -> str | None:
        """Returns the same for a reported run; None: it has no such option."""
        if self.make:
            return str(folder / f"{self.name}.jsonl")
        return f"tasks:1:{self.count}" if self.count else None

    def write(self, folder: Path, alpaca: Path | None) -> None:
        """Writes both files into `folder`, unless they are there. Raises ValueError where there is no source."""
        if self.make is None:
            return
        paths = [Path(str(path)) for path in (self.tuning(folder), self.reported(folder))]
        if all(path.is_file() for path in paths):
            return
        folder.mkdir(parents=True, exist_ok=True)
        for path, records in zip(paths, self.make(alpaca), strict=True):
            write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def split_alpaca(path: Path | None) -> Parts:
    """Splits the records by their question, so that equal questions are in the same part."""
    if path is None:
        raise ValueError(
            "[bench.quality] the setting alpaca needs --alpaca FILE, LLaMA-Factory's alpaca_en_demo.json; "
            "the other settings (--only) do not need it"
        )
    records = _read_alpaca(path)
    questions = list(dict.fromkeys(map(_question, records)))
    order = Rng("alpaca for tuning").permutation(len(questions))
    chosen = {questions[i] for i in order[: round(TUNING_SHARE * len(questions))]}
    tuning = [record for record in records if _question(record) in chosen]
    return tuning, [record for record in records if _question(record) not in chosen]


def _read_alpaca(path: Path) -> list[Record]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        for record in records:
            _question(record)
    except OSError as error:
        raise ValueError(f"[bench.quality] --alpaca {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"[bench.quality] --alpaca {path} is not a JSON list of Alpaca records") from error
    return records


def _question(record: Record) -> tuple[str, str]:
    return record["instruction"], record.get("input") or ""


def sample_corpus(_alpaca: Path | None) -> Parts:
    """Returns a sample of the files of the installed transformers package, one record per file."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise ValueError("[bench.quality] the setting corpus samples the package transformers, which is not installed")
    texts = _shuffled_sources(Path(found.submodule_search_locations[0]))
    return _take(texts, TUNING_CHARACTERS), _take(texts, REPORTED_CHARACTERS)


def _shuffled_sources(root: Path) -> Iterator[str]:
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    for i in Rng("corpus").permutation(len(files)):
        text = (root / files[i]).read_text(encoding="utf-8")
        if text.strip() and len(text) <= LONGEST_FILE_CHARACTERS:
            yield text


def _take(texts: Iterator[str], characters: int) -> list[Record]:
    """Returns the next texts, which together have at least `characters` characters."""
    taken: list[Record] = []
    for text in texts:
        taken.append({"text": text})
        characters -= len(text)
        if characters <= 0:
            return taken
    raise ValueError("[bench.quality] the installed package transformers is too small for the setting corpus")


BUNDLED = DataSet("bundled", None)
MANY_TASKS = DataSet("many-tasks", None, 200_000)  # 4.2 million tokens
ALPACA = DataSet("alpaca", split_alpaca)
CORPUS = DataSet("corpus", sample_corpus)
