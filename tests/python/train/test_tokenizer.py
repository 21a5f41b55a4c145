# SPDX-License-Identifier: Apache-2.0
"""The tokenizer: it restores any text, gives the same tokens for the same data, and can be opened by transformers."""

import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from octavo.train.data.dataset import Corpus, Example, load_corpus
from octavo.train.data.tokenizer import MIN_VOCAB_SIZE, prompts_and_answers, token_ids, train_tokenizer

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(None, seed=0)


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    return train_tokenizer(corpus)


def small(*texts: str) -> Corpus:
    return Corpus("small", [Example("Say it.", "", text) for text in texts], [], False, "")


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(token_ids(tokenizer, [text])[0]) == text


@settings(max_examples=50, deadline=None)
@given(text=st.lists(st.sampled_from(["<eos>", "<pad>", "<bos>", " a", "\n"])).map("".join))
def test_a_special_token_spelt_in_the_data_is_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = token_ids(tokenizer, [text])[0]
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == text


def test_the_same_data_give_the_same_tokenizer(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    again = train_tokenizer(load_corpus(None, seed=0))
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_the_held_out_part_is_not_looked_at(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    blind = Corpus(corpus.name, corpus.train, [], corpus.checkable, "")
    assert train_tokenizer(blind).get_vocab() == tokenizer.get_vocab()


def test_sizes(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 384
    assert len(train_tokenizer(corpus, 300)) == 300
    assert len(train_tokenizer(small("a", "b"))) < 300, "two letters do not fill a vocabulary"
    assert len(train_tokenizer(small("a", "b"), MIN_VOCAB_SIZE)) == MIN_VOCAB_SIZE
    with pytest.raises(
        ValueError, match=r"\[train.tokenizer\] a vocabulary of 261 tokens is too small; it needs at least 262"
    ):
        train_tokenizer(corpus, 261)


def texts(*texts: str) -> Corpus:
    return Corpus("texts", [Example("", "", text) for text in texts], [], False, "")


def test_a_word_of_any_length_is_cut_for_the_vocabulary_alone() -> None:
    """The time of the training grows with the square of a word's length: 300,000 letters in one word took a minute."""
    picture = "".join(random.Random(0).choices(string.ascii_letters, k=5_000))
    whole = train_tokenizer(texts(picture))
    pieces = train_tokenizer(texts(*(picture[i : i + 1000] for i in range(0, 5000, 1000))))
    assert whole.backend_tokenizer.to_str() == pieces.backend_tokenizer.to_str()
    assert "Split" not in whole.backend_tokenizer.to_str(), "a text is encoded as before"


def test_a_prompt_is_bos_one_token_a_heading_and_the_text(tokenizer: PreTrainedTokenizerFast) -> None:
    [(asked, _)] = prompts_and_answers(Example("Swap the words.", "sun tree", "tree sun"))
    assert asked == "### Instruction: Swap the words.\n\n### Input: sun tree\n\n### Response:"
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(asked)["input_ids"])
    assert tokens[:2] == ["<bos>", "### Instruction:"]
    assert "\n\n### Input:" in tokens and tokens[-1] == "\n\n### Response:"
    assert prompts_and_answers(Example("Go.", "", "x")) == [("### Instruction: Go.\n\n### Response:", " x")]


def test_a_word_is_the_same_tokens_in_question_and_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    example = Example("Repeat the words.", "sun tree", "sun tree")
    asked, said = token_ids(tokenizer, [*prompts_and_answers(example)[0]])
    copies = [i for i in range(len(asked)) if asked[i : i + len(said)] == said]
    assert len(copies) == 1


def test_digits_stand_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(token_ids(tokenizer, ["20262026"])[0]) == 8


def test_plain_text_has_no_prompt() -> None:
    text = Example("", "", "Once upon a time")
    assert prompts_and_answers(text) == [("", "Once upon a time")]


def test_transformers_opens_what_is_saved(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    LlamaConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)  # as in a checkpoint
    tokenizer.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    [(asked, _)] = prompts_and_answers(Example("Count the words.", "a b  c 12", ""))
    assert opened(asked)["input_ids"] == tokenizer(asked)["input_ids"]
    assert (opened.pad_token, opened.bos_token, opened.eos_token) == ("<pad>", "<bos>", "<eos>")
    assert opened.padding_side == "left" and len(opened) == len(tokenizer)
    assert opened.decode(opened(asked)["input_ids"], skip_special_tokens=True) == asked
