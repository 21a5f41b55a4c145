# SPDX-License-Identifier: Apache-2.0
"""Data files: what is read, how it is split, and the sentence for each thing that can be wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.train.data.dataset import Corpus, Example, load_corpus

pytestmark = pytest.mark.timeout(30)

RECORDS = [{"instruction": f"Say {i}.", "input": "", "output": str(i)} for i in range(40)]


def write(folder: Path, name: str, content: str | bytes | list) -> Path:
    path = folder / name
    if isinstance(content, list):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def everything(corpus: Corpus) -> list[Example]:
    return sorted(corpus.train + corpus.held_out, key=lambda e: (e.instruction, e.input, e.output))


def test_the_bundled_tasks_are_checkable_and_split_cleanly() -> None:
    corpus = load_corpus(None, seed=0)
    questions = {(example.instruction, example.input) for example in corpus.train}
    assert corpus.checkable and corpus.name == "octavo-tasks"
    assert not any((example.instruction, example.input) in questions for example in corpus.held_out)
    assert 0.08 < len(corpus.held_out) / len(everything(corpus)) < 0.12


def test_the_split_depends_on_the_seed_and_the_fingerprint_does_not(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", RECORDS)
    first, again, other = (load_corpus(path, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.held_out != other.held_out and everything(first) == everything(other)
    assert first.fingerprint == other.fingerprint and len(first.fingerprint) == 64
    assert len(first.held_out) == 4 and not first.checkable


def test_other_content_has_another_fingerprint(tmp_path: Path) -> None:
    one = load_corpus(write(tmp_path, "a.json", RECORDS), seed=0)
    two = load_corpus(write(tmp_path, "b.json", RECORDS[:-1]), seed=0)
    assert one.fingerprint != two.fingerprint


def test_json_and_jsonl_hold_the_same(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(record) for record in RECORDS) + "\n\n"
    a, b = write(tmp_path, "a.json", RECORDS), write(tmp_path, "a.JSONL", lines)
    assert everything(load_corpus(a, seed=0)) == everything(load_corpus(b, seed=0))


def test_input_may_be_left_out_or_null_and_output_may_be_empty(tmp_path: Path) -> None:
    records = [
        {"instruction": "a", "output": ""},
        {"instruction": "b", "input": None, "output": "x", "id": 3},
    ]
    assert everything(load_corpus(write(tmp_path, "a.json", records), seed=0)) == [
        Example("a", "", ""),
        Example("b", "", "x"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", b"\xef\xbb\xbf" + json.dumps(RECORDS).encode())
    assert len(everything(load_corpus(path, seed=0))) == len(RECORDS)


def test_a_line_separator_inside_a_string_ends_no_line_of_jsonl(tmp_path: Path) -> None:
    lines = [json.dumps({"instruction": f"{i}", "output": "a\u2028b"}, ensure_ascii=False) for i in range(3)]
    corpus = load_corpus(write(tmp_path, "a.jsonl", "\r\n".join(lines)), seed=0)
    assert {example.output for example in everything(corpus)} == {"a\u2028b"}


def test_equal_questions_stay_on_one_side(tmp_path: Path) -> None:
    records = [{"instruction": f"q{i % 5}", "output": f"{i}"} for i in range(50)]
    corpus = load_corpus(write(tmp_path, "a.json", records), seed=3)
    held = {example.instruction for example in corpus.held_out}
    assert len(held) == 1 and len(corpus.held_out) == 10
    assert held.isdisjoint(example.instruction for example in corpus.train)


@settings(max_examples=60, deadline=None)
@given(text=st.text(min_size=200, max_size=2000).filter(lambda text: len(text.strip()) > 150))
def test_plain_text_is_cut_without_loss(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    try:
        corpus = load_corpus(path, seed=0)
    except ValueError as error:  # a text that repeats itself may have but one block
        assert "at least 2 different records" in str(error)
        return
    examples = everything(corpus)
    assert all(example.is_text for example in examples)
    blocks = {example.output for example in examples}
    assert all(block in text for block in blocks)
    kept = sum(len(example.output) for example in examples)
    assert kept >= len(text.rstrip()) - 64 * text.count(" ") - 64


def test_plain_text_keeps_whole_lines(tmp_path: Path) -> None:
    text = "".join(f"line {i} of a short story\n" for i in range(400))
    corpus = load_corpus(write(tmp_path, "a.txt", text), seed=0)
    assert all(example.output.endswith("\n") for example in everything(corpus))
    assert "".join(sorted((e.output for e in everything(corpus)), key=text.index)) == text


BAD_FILES = [
    ("a.json", "", "expected a list of records, got an empty file, in FILE"),
    ("a.json", "[]", "expected at least 2 records, got an empty data set, in FILE"),
    ("a.jsonl", "\n\n", "got an empty data set, in FILE"),
    ("a.txt", " \n", "got an empty data set, in FILE"),
    ("a.json", '[\n{"instruction": "a",\n}]', "expected JSON, got malformed JSON (", ", in FILE, line 3"),
    ("a.jsonl", '{"instruction": "a", "output": "b"}\n{"in', "got malformed JSON (", ", in FILE, line 2"),
    ("a.json", '{"instruction": "a"}', "expected a list of records, got an object, in FILE"),
    ("a.json", "3", "expected a list of records, got a number, in FILE"),
    ("a.json", "[" * 100_000, "got JSON that is nested too deeply, in FILE, line 1"),
    ("a.json", "[" + "9" * 5000 + "]", "got a number that is too long to read, in FILE, line 1"),
    ("a.json", [RECORDS[0], "text"], "expected an object with the fields", "got a string, in FILE, record 2"),
    ("a.jsonl", '[1]\n{"a": 2}', "expected an object with the fields", "got a list, in FILE, line 1"),
    (
        "a.json",
        [{"instruction": "a", "text": "b"}],
        "the field 'output', got the fields ['instruction', 'text']",
    ),
    ("a.json", [RECORDS[0], {"output": "b"}], "the field 'instruction', got the fields", "FILE, record 2"),
    (
        "a.json",
        [{"instruction": 3, "output": "b"}],
        "a string as 'instruction', got a number, in FILE, record 1",
    ),
    (
        "a.json",
        [{"instruction": "a", "output": ["b"]}],
        "a string as 'output', got a list, in FILE, record 1",
    ),
    ("a.json", [{"instruction": "a", "output": None}], "a string as 'output', got null"),
    ("a.json", [{"instruction": "a", "input": {}, "output": ""}], "a string as 'input', got an object"),
    (
        "a.json",
        [{"instruction": " ", "output": "b"}],
        "expected an instruction, got an empty one, in FILE, record 1",
    ),
    ("a.json", '[{"instruction": "\\ud800", "output": ""}]', "valid Unicode in 'instruction', got half"),
    ("a.json", RECORDS[:1], "expected at least 2 different records, of which 1 is held out, got 1, in FILE"),
    ("a.json", RECORDS[:1] * 9, "expected at least 2 different records"),
    ("a.txt", "too short", "expected at least 2 different records"),
    ("a.txt", b"good line\nbad \xff line", "expected UTF-8 text, got byte 0xff, in FILE, line 2"),
    ("a.csv", "a,b", "expected a file named .json, .jsonl or .txt, got the extension '.csv', in FILE"),
    ("data", "a,b", "got no extension, in FILE"),
]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad[2][:60])
def test_a_bad_file_gets_one_sentence(bad: tuple, tmp_path: Path) -> None:
    name, content, *words = bad
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError) as caught:
        load_corpus(path, seed=0)
    said = str(caught.value)
    assert said.startswith("[train.dataset] expected ") and "\n" not in said
    for word in words:
        assert word.replace("FILE", str(path)) in said


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"\[train.dataset\] expected a data set, got no such file, in "):
        load_corpus(tmp_path / "none.json", seed=0)
    with pytest.raises(ValueError, match=r"\[train.dataset\] expected a file, got a directory, in "):
        load_corpus(tmp_path, seed=0)
    with pytest.raises(OSError, match=r"\[train.dataset\] expected a readable file, got 'file name too long', in"):
        load_corpus(tmp_path / ("x" * 5000 + ".json"), seed=0)
