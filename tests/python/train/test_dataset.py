# SPDX-License-Identifier: Apache-2.0
"""Data files: what is read, how it is split, and the error for each thing that can be wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.train.data.dataset import Corpus, Example, load_corpus
from octavo.train.data.records import parse

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
    renamed = load_corpus(write(tmp_path, "c.json", RECORDS), seed=0)
    as_text = load_corpus(write(tmp_path, "a.txt", json.dumps(RECORDS)), seed=0)
    assert one.fingerprint == renamed.fingerprint != as_text.fingerprint


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


def test_a_field_of_null_is_left_out(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("messages", "conversations", "instruction", "input", "output", "text"))
    records = [
        nothing | {"instruction": "a", "output": "b"},
        nothing | {"text": "c"},
        nothing | {"conversations": [{"from": "human", "value": "d"}, {"from": "gpt", "value": "e"}]},
    ]
    expected = [Example("", "", "c"), Example("a", "", "b"), Example("d", "", "e")]
    assert everything(load_corpus(write(tmp_path, "a.json", records), seed=0)) == expected


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
    except ValueError as error:  # a text that repeats itself may have only one block
        assert "all records ask the same" in str(error) or "is empty" in str(error)
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


NO_FORM = "the record has no known form: it has "
FORMS = "it must have instruction and output, messages, conversations, or text"


def chat(*turns: tuple[str, object]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


BAD_FILES = [
    ("a.json", "", "FILE: the file is empty; it must hold a list of records"),
    ("a.json", "[]", "FILE: the data set is empty; it needs at least 2 different records"),
    ("a.jsonl", "\n\n", "FILE: the data set is empty"),
    ("a.txt", " \n", "FILE: the data set is empty"),
    ("a.json", '[\n{"instruction": "a",\n}]', "FILE, line 3: malformed JSON ("),
    ("a.jsonl", '{"instruction": "a", "output": "b"}\n{"in', "FILE, line 2: malformed JSON ("),
    ("a.json", '{"instruction": "a"}', "FILE: the file holds an object; it must hold a list of records"),
    ("a.json", "3", "FILE: the file holds a number; it must hold a list of records"),
    ("a.json", "[" * 100_000, "FILE, line 1: the JSON is nested too deeply"),
    ("a.json", "[" + "9" * 5000 + "]", "FILE, line 1: a number is too long to read"),
    ("a.json", [RECORDS[0], "text"], "FILE, record 2: the record is a string; it must be an object with"),
    ("a.jsonl", '[1]\n{"a": 2}', "FILE, record 1 (line 1): the record is a list; it must be an object with"),
    ("a.jsonl", '\n{"a": 2, "b": 3}', f"FILE, record 1 (line 2): {NO_FORM}a, b; {FORMS}"),
    ("a.json", [{}], f"{NO_FORM}no keys; {FORMS}"),
    ("a.json", [{"instruction": "a", "text": "b"}], f"{NO_FORM}instruction, text; {FORMS}"),
    ("a.json", [RECORDS[0], {"output": "b"}], f"FILE, record 2: {NO_FORM}output; {FORMS}"),
    ("a.json", [{"instruction": 3, "output": "b"}], "FILE, record 1: 'instruction' is a number; it must be a string"),
    ("a.json", [{"instruction": "a", "output": ["b"]}], "FILE, record 1: 'output' is a list; it must be a string"),
    ("a.json", [{"instruction": "a", "output": None}], "'output' is null; it must be a string"),
    ("a.json", [{"instruction": "a", "input": {}, "output": ""}], "'input' is an object; it must be a string"),
    ("a.json", [{"instruction": " ", "output": "b"}], "FILE, record 1: 'instruction' is empty"),
    ("a.json", [{"text": "\n"}], "FILE, record 1: 'text' is empty"),
    ("a.json", [{"text": 1}], "FILE, record 1: 'text' is a number; it must be a string"),
    ("a.json", [{"messages": "hi"}], "FILE, record 1: 'messages' is a string; it must be a list of turns"),
    ("a.json", [{"messages": None}], f"{NO_FORM}messages (null); {FORMS}"),
    ("a.json", [{"messages": []}], "FILE, record 1: 'messages' has no turn of the assistant"),
    ("a.json", [chat(("user", "hi"))], "FILE, record 1: 'messages' has no turn of the assistant"),
    (
        "a.json",
        [chat(("assistant", "hi"))],
        "FILE, record 1: 'messages' has an answer of the assistant and no question",
    ),
    ("a.json", [chat(("tool", "hi"))], "record 1, turn 1: the role 'tool' is not known; roles are system, developer,"),
    ("a.json", [chat(("user", "hi"), ("assistant", [1]))], "record 1, turn 2: 'content' is a list; it must be"),
    ("a.json", [{"conversations": [{"from": "gpt"}]}], "turn 1: the turn is an object with from; it must be an object"),
    ("a.json", [{"conversations": ["hi"]}], "turn 1: the turn is a string; it must be an object with from and value"),
    ("a.json", '[{"instruction": "\\ud800", "output": ""}]', "'instruction' has half of a surrogate pair"),
    ("a.json", RECORDS[:1], "FILE: all records ask the same; at least 2 different ones are needed"),
    ("a.json", RECORDS[:1] * 9, "all records ask the same"),
    (
        "a.txt",
        "Hello.",
        "FILE: the text is a single piece; at least 2 different pieces are needed, of which 1 is held out",
    ),
    ("a.json", [{"text": "Hello." * 9999}], "FILE: the text is a single piece"),
    ("a.json", [{"text": "Hello."}] * 9, "FILE: all 9 pieces of the text are the same"),
    ("a.txt", b"good line\nbad \xff line", "FILE, line 2: byte 0xff is not UTF-8"),
    ("a.txt", b"\xef\xbb\xbfcaf\xe9\n", "FILE, line 1: byte 0xe9 is not UTF-8"),
    ("a.csv", "a,b", "FILE: the extension '.csv' is not known; name it .json, .jsonl or .txt"),
    ("data", "a,b", "FILE: the file has no extension"),
]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad[2][:60])
def test_a_bad_file_gets_one_sentence(bad: tuple, tmp_path: Path) -> None:
    name, content, *words = bad
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError) as caught:
        load_corpus(path, seed=0)
    said = str(caught.value)
    assert said.startswith(f"[train.records] {path}") and "\n" not in said
    for word in words:
        assert word.replace("FILE", str(path)) in said


def test_half_a_draw_of_the_tasks_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^\[train\.dataset\] tasks:abc is neither a file nor .* tasks:DRAW:COUNT"):
        load_corpus(Path("tasks:abc"), seed=0)
    with pytest.raises(
        ValueError, match=r"^\[train\.dataset\] tasks is neither .* tasks:2:500, or leave --data out for"
    ):
        load_corpus(Path("tasks"), seed=0)
    Path("tasks:abc.txt").write_text(" ".join(map(str, range(2000))))
    assert load_corpus(Path("tasks:abc.txt"), seed=0).train


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^\[train\.records\] .*none\.json: there is no such file"):
        load_corpus(tmp_path / "none.json", seed=0)
    with pytest.raises(ValueError, match=r"^\[train\.records\] .*: this is a directory, not a file"):
        load_corpus(tmp_path, seed=0)
    with pytest.raises(OSError, match=r"^\[train\.records\] .*: the file cannot be read \(file name too long\)"):
        load_corpus(tmp_path / ("x" * 5000 + ".json"), seed=0)


TURNS = [("system", "Be short."), ("user", "Hi."), ("assistant", "Yes?"), ("user", "2 + 2?"), ("assistant", "4")]
CHAT = Example("2 + 2?", "", "4", "Be short.", (("Hi.", "Yes?"),))
OTHER = {"text": "A plain text."}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_chats_and_texts_are_read_in_both_formats(name: str, tmp_path: Path) -> None:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    shared = {"conversations": [{"from": names[role], "value": text} for role, text in TURNS]}
    for record in (chat(*TURNS), shared):
        records = [record, OTHER]
        content = json.dumps(records) if name == "a.json" else "".join(json.dumps(r) + "\n" for r in records)
        examples = everything(load_corpus(write(tmp_path, name, content), seed=0))
        assert sorted(examples, key=lambda example: example.is_text) == [CHAT, Example("", "", "A plain text.")]


def test_a_chat_ends_with_the_last_answer_and_joins_what_one_side_says_twice(tmp_path: Path) -> None:
    turns = [("user", "Hi."), ("user", "2 + 2?"), ("assistant", "4"), ("user", "Thanks.")]
    examples = everything(load_corpus(write(tmp_path, "a.json", [chat(*turns), OTHER]), seed=0))
    assert Example("Hi.\n\n2 + 2?", "", "4") in examples


def test_an_alpaca_record_may_have_a_system_and_a_history(tmp_path: Path) -> None:
    record = {
        "instruction": "Its river?",
        "output": "The Seine.",
        "system": "Be short.",
        "history": [["A city?", "Paris."]],
    }
    chat = {
        "system": "Be short.",
        "conversations": [
            {"from": "human", "value": "A city?"},
            {"from": "gpt", "value": "Paris."},
            {"from": "human", "value": "Its river?"},
            {"from": "gpt", "value": "The Seine."},
        ],
    }
    expected = Example("Its river?", "", "The Seine.", "Be short.", (("A city?", "Paris."),))
    for one in (record, chat, record | {"input": None}):
        assert parse(json.dumps([one]).encode(), Path("some.json")) == [expected]
    for history, words in (
        ("x", "'history' is a string"),
        ([["a"]], "round 1 of the history: the round is a list of 1"),
    ):
        with pytest.raises(ValueError, match=words):
            parse(json.dumps([record | {"history": history}]).encode(), Path("some.json"))


def test_an_alpaca_record_may_have_a_text_too(tmp_path: Path) -> None:
    records = [{"instruction": f"Say {i}.", "input": "", "output": str(i), "text": "..."} for i in range(3)]
    assert not any(example.is_text for example in everything(load_corpus(write(tmp_path, "a.json", records), seed=0)))


def test_chats_that_begin_alike_stay_on_one_side(tmp_path: Path) -> None:
    chats = []
    for i in range(50):
        beginning = (("user", f"question {i}"), ("assistant", f"answer {i}"))
        chats += [chat(*beginning), chat(*beginning, ("user", "and then?"), ("assistant", "that is all"))]
    corpus = load_corpus(write(tmp_path, "a.json", chats), seed=0)

    def beginnings(examples: list[Example]) -> set[str]:
        return {example.history[0][0] if example.history else example.instruction for example in examples}

    assert len(beginnings(corpus.held_out)) == 5
    assert not beginnings(corpus.held_out) & beginnings(corpus.train)
