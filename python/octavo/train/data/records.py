# SPDX-License-Identifier: Apache-2.0
"""Reads a data file into examples and checks every record on the way.

Alpaca records (`.json`, `.jsonl`) hold an instruction, an optional input and an output; a plain `.txt` is cut
into blocks. What is wrong is said in one sentence, with the file and the line or record.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A tenth of the blocks is held out: they must be small beside the text, and large enough to be worth reading.
TEXT_BLOCKS = 40
BLOCK_CHARACTERS = (64, 4096)


@dataclass(frozen=True)
class Example:
    """One sample. An empty instruction marks plain text: it stands in `output` and is learnt as a whole."""

    instruction: str
    input: str
    output: str

    @property
    def is_text(self) -> bool:
        """Whether this is plain text rather than a question with an answer."""
        return not self.instruction


def failure(expected: str, got: str, place: str) -> ValueError:
    """The error of this module and of `dataset`, to be raised."""
    return ValueError(f"[train.dataset] expected {expected}, got {got}, in {place}")


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises FileNotFoundError, ValueError, or the system's own OSError."""
    try:
        if path.is_file():
            return path.read_bytes()
        if not path.exists():
            raise FileNotFoundError(f"[train.dataset] expected a data set, got no such file, in {path}")
    except FileNotFoundError:
        raise
    except OSError as error:
        got = error.strerror.lower() if error.strerror else type(error).__name__
        raise type(error)(f"[train.dataset] expected a readable file, got '{got}', in {path}") from error
    raise failure("a file", "a directory" if path.is_dir() else "something that is no regular file", str(path))


def parse(content: bytes, path: Path) -> list[Example]:
    """The examples in `content`, in the format that the extension of `path` names. Raises ValueError."""
    parsers: dict[str, Callable[[str, str], list[Example]]]
    parsers = {".json": _parse_json, ".jsonl": _parse_jsonl, ".txt": _parse_text}
    parser = parsers.get(path.suffix.lower())
    if parser is None:
        got = f"the extension '{path.suffix}'" if path.suffix else "no extension"
        raise failure("a file named .json, .jsonl or .txt", got, str(path))
    return parser(_decode(content, str(path)), str(path))


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise failure("UTF-8 text", f"byte 0x{content[error.start]:02x}", f"{place}, line {line}") from error


def _parse_json(text: str, place: str) -> list[Example]:
    if not text.strip():
        raise failure("a list of records", "an empty file", place)
    records = _load_json(text, place, first_line=1)
    if not isinstance(records, list):
        raise failure("a list of records", _json_type(records), place)
    return [_example(record, f"{place}, record {i}") for i, record in enumerate(records, start=1)]


def _parse_jsonl(text: str, place: str) -> list[Example]:
    # Only \n ends a line of JSONL: str.splitlines would also cut at characters that JSON strings may hold.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [_example(_load_json(line, place, number), f"{place}, line {number}") for number, line in lines]


def _load_json(text: str, place: str, first_line: int) -> object:
    here = f"{place}, line {first_line}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        got = f"malformed JSON ({error.msg}, column {error.colno})"
        raise failure("JSON", got, f"{place}, line {first_line + error.lineno - 1}") from error
    except RecursionError as error:
        raise failure("a flat record", "JSON that is nested too deeply", here) from error
    except ValueError as error:  # Python refuses integers of thousands of digits
        raise failure("text fields", "a number that is too long to read", here) from error


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _example(record: object, place: str) -> Example:
    if not isinstance(record, dict):
        raise failure("an object with the fields instruction and output", _json_type(record), place)
    for name in ("instruction", "output"):
        if name not in record:
            raise failure(f"the field '{name}'", f"the fields {sorted(record)}", place)
    # Some exports write null for "no input"; it means the same as leaving the field out.
    given = "" if record.get("input") is None else record["input"]
    example = Example(record["instruction"], given, record["output"])
    for name, value in vars(example).items():
        _check_text(name, value, place)
    if not example.instruction.strip():
        raise failure("an instruction", "an empty one", place)
    return example


def _check_text(name: str, value: object, place: str) -> None:
    if not isinstance(value, str):
        raise failure(f"a string as '{name}'", _json_type(value), place)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may spell half a surrogate pair, which no tokenizer takes
        raise failure(f"valid Unicode in '{name}'", "half of a surrogate pair", place) from error


def _parse_text(text: str, place: str) -> list[Example]:
    """Blocks of whole lines; only a line longer than a block is cut."""
    low, high = BLOCK_CHARACTERS
    target = max(low, min(high, len(text) // TEXT_BLOCKS))
    blocks, block = [], ""
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), target):
            block += line[start : start + target]
            if len(block) >= target:
                blocks.append(block)
                block = ""
    return [Example("", "", block) for block in [*blocks, block] if block.strip()]
