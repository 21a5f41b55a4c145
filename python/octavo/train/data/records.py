# SPDX-License-Identifier: Apache-2.0
"""Reads a data file into examples and checks every record on the way.

A record of a `.json` list or of a line of `.jsonl` has one of these forms:

    {"instruction": …, "input": …, "output": …}                         Alpaca; the input may be left out, "system" and
                                                                        "history", [[question, answer], …], added
    {"messages": [{"role": "user", "content": …}, …]}                   a chat
    {"conversations": [{"from": "human", "value": …}, …]}               a chat, as ShareGPT has it, and "system"
    {"text": …}                                                         plain text

A plain `.txt` is cut into blocks. An error is one sentence that names the file and the record or line.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A tenth of the blocks is held out: they must be small beside the text, and large enough to be worth reading.
TEXT_BLOCKS = 40
BLOCK_CHARACTERS = (64, 4096)
ROLES = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt"),
}
FORMS = "instruction and output, messages, conversations, or text"


@dataclass(frozen=True)
class Example:
    """One sample: a question with its answer, the last one of a chat, or plain text.

    `history` has the earlier questions of a chat, each with its answer; `system` is what precedes them all. Plain text
    is in `output`; everything else is then empty.
    """

    instruction: str
    input: str
    output: str
    system: str = ""
    history: tuple[tuple[str, str], ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether this is plain text rather than a question with an answer."""
        return not (self.instruction or self.system or self.history)


def failure(problem: str, place: str) -> ValueError:
    """Returns the error to raise for a data file: `problem` is the rest of a sentence that begins with the place."""
    return ValueError(f"[train.records] {place}: {problem}")


def read_file(path: Path) -> bytes:
    """Returns the content of a regular file. Raises FileNotFoundError, ValueError, or the system's own OSError."""
    try:
        if path.is_file():
            return path.read_bytes()
        if not path.exists():
            raise FileNotFoundError(f"[train.records] {path}: there is no such file")
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror.lower() if error.strerror else type(error).__name__
        raise type(error)(f"[train.records] {path}: the file cannot be read ({reason})") from error
    raise failure("this is a directory, not a file" if path.is_dir() else "this is no regular file", str(path))


def parse(content: bytes, path: Path) -> list[Example]:
    """Returns the examples in `content`, in the format that the extension of `path` names. Raises ValueError."""
    parsers: dict[str, Callable[[str, str], list[Example]]]
    parsers = {".json": _parse_json, ".jsonl": _parse_jsonl, ".txt": _parse_text}
    parser = parsers.get(path.suffix.lower())
    if parser is None:
        extension = f"the extension '{path.suffix}' is not known" if path.suffix else "the file has no extension"
        raise failure(f"{extension}; name it .json, .jsonl or .txt", str(path))
    return parser(_decode(content, str(path)), str(path))


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1  # of what follows a byte order mark
        byte = error.object[error.start]
        raise failure(f"byte 0x{byte:02x} is not UTF-8; save the file as UTF-8", f"{place}, line {line}") from error


def _parse_json(text: str, place: str) -> list[Example]:
    if not text.strip():
        raise failure("the file is empty; it must hold a list of records", place)
    records = _load_json(text, place, first_line=1)
    if not isinstance(records, list):
        raise failure(
            f"the file holds {_json_type(records)}; it must hold a list of records, or be named .jsonl where every "
            f"line is a record",
            place,
        )
    return [_example(record, f"{place}, record {i}") for i, record in enumerate(records, start=1)]


def _parse_jsonl(text: str, place: str) -> list[Example]:
    # Only \n ends a line of JSONL: str.splitlines would also cut at characters that JSON strings may hold.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    return [
        _example(_load_json(line, place, number), f"{place}, record {record} (line {number})")
        for record, (number, line) in enumerate(lines, start=1)
    ]


def _load_json(text: str, place: str, first_line: int) -> object:
    here = f"{place}, line {first_line}"
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        problem = f"malformed JSON ({error.msg.lower()}, column {error.colno})"
        raise failure(problem, f"{place}, line {line}") from error
    except RecursionError as error:
        raise failure("the JSON is nested too deeply; records are flat", here) from error
    except ValueError as error:  # Python refuses integers of thousands of digits
        raise failure("a number is too long to read; records hold text", here) from error


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _example(record: object, place: str) -> Example:
    if not isinstance(record, dict):
        raise failure(f"the record is {_json_type(record)}; it must be an object with {FORMS}", place)
    # Some exports have all fields in every record, with null for those that are left out.
    given = {name for name, value in record.items() if value is not None}
    for turns, role, content in (("messages", "role", "content"), ("conversations", "from", "value")):
        if turns in given:
            return _chat(record, turns, role, content, place)
    if "text" in given and "instruction" not in given:
        return Example("", "", _text(record, "text", place, may_be_blank=False))
    if "instruction" in record and "output" in record:
        return _alpaca(record, place)
    keys = ", ".join(str(name) if name in given else f"{name} (null)" for name in sorted(record)) or "no keys"
    raise failure(f"the record has no known form: it has {keys}; it must have {FORMS}", place)


def _alpaca(record: dict[str, object], place: str) -> Example:
    instruction = _text(record, "instruction", place, may_be_blank=False)
    given, system = _text_or_empty(record, "input", place), _text_or_empty(record, "system", place)
    return Example(instruction, given, _text(record, "output", place), system, _history(record, place))


def _history(record: dict[str, object], place: str) -> tuple[tuple[str, str], ...]:
    rounds = [] if record.get("history") is None else record["history"]
    if not isinstance(rounds, list):
        raise failure(f"'history' is {_json_type(rounds)}; it must be a list of [question, answer]", place)
    said = []
    for number, one in enumerate(rounds, start=1):
        here = f"{place}, round {number} of the history"
        if not isinstance(one, list) or len(one) != 2:
            got = f"a list of {len(one)}" if isinstance(one, list) else _json_type(one)
            raise failure(f"the round is {got}; it must be [question, answer]", here)
        both = {"question": one[0], "answer": one[1]}
        said.append((_text(both, "question", here), _text(both, "answer", here)))
    return tuple(said)


def _chat(record: dict[str, object], name: str, role_key: str, content_key: str, place: str) -> Example:
    """Returns the chat up to the assistant's last turn: nothing is learnt from what follows it."""
    turns = record[name]
    if not isinstance(turns, list):
        raise failure(f"'{name}' is {_json_type(turns)}; it must be a list of turns", place)
    said = [_turn(turn, role_key, content_key, f"{place}, turn {i}") for i, turn in enumerate(turns, start=1)]
    before = _text_or_empty(record, "system", place)
    system = "\n\n".join([*filter(None, [before]), *(text for role, text in said if role == "system")])
    rounds: list[tuple[str, str]] = []
    question: list[str] = []
    for role, text in said:
        if role == "user":
            question.append(text)
        elif role == "assistant":
            rounds.append(("\n\n".join(question), text))
            question = []
    if not rounds:
        raise failure(f"'{name}' has no turn of the assistant, and so nothing to learn", place)
    *history, (asked, answer) = rounds
    if not (asked or system or history):
        raise failure(f"'{name}' has an answer of the assistant and no question before it", place)
    return Example(asked, "", answer, system, tuple(history))


def _turn(turn: object, role_key: str, content_key: str, place: str) -> tuple[str, str]:
    """Returns the role of a turn, by its first name in `ROLES`, and the text of the turn."""
    if not isinstance(turn, dict) or not {role_key, content_key} <= turn.keys():
        got = f"an object with {', '.join(sorted(turn)) or 'no keys'}" if isinstance(turn, dict) else _json_type(turn)
        raise failure(f"the turn is {got}; it must be an object with {role_key} and {content_key}", place)
    role = _text(turn, role_key, place)
    for known, names in ROLES.items():
        if role in names:
            return known, _text(turn, content_key, place)
    names = ", ".join(name for names in ROLES.values() for name in names)
    raise failure(f"the role '{role}' is not known; roles are {names}", place)


def _text_or_empty(record: dict[str, object], name: str, place: str) -> str:
    return "" if record.get(name) is None else _text(record, name, place)


def _text(record: dict[str, object], name: str, place: str, *, may_be_blank: bool = True) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise failure(f"'{name}' is {_json_type(value)}; it must be a string", place)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may spell half a surrogate pair, which no tokenizer takes
        raise failure(f"'{name}' has half of a surrogate pair, which is no valid Unicode", place) from error
    if not may_be_blank and not value.strip():
        raise failure(f"'{name}' is empty", place)
    return value


def _parse_text(text: str, place: str) -> list[Example]:
    """Cuts a text into blocks of whole lines; only a line longer than a block is cut."""
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
