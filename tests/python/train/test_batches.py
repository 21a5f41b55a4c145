# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens: where the loss is, that packed samples do not see each other, and which rank gets which rows."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from octavo.train.data.batches import IGNORE, Batches, encode, pack
from octavo.train.data.dataset import Corpus, Example, load_corpus
from octavo.train.data.tokenizer import prompts_and_answers, token_ids, train_tokenizer

pytestmark = pytest.mark.timeout(30)

SEQ_LEN = 64


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = load_corpus(None, seed=0)
    return Corpus(whole.name, whole.train[:400], whole.held_out[:40], True, "")


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    return train_tokenizer(corpus)


@pytest.fixture(scope="module")
def batches(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> Batches:
    return Batches(corpus.train, tokenizer, seq_len=SEQ_LEN, batch_size=3, seed=5, grad_accum=2)


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,  # large weights: a leak between samples would show
    )
    return LlamaForCausalLM(config).eval()


def samples_of(ids: Tensor, labels: Tensor, positions: Tensor) -> list[tuple[list[int], list[int]]]:
    """Returns the samples of one row, cut where the positions begin anew; padding stays with the last one."""
    starts = [i for i in range(len(ids)) if positions[i] == 0]
    ends = [*starts[1:], len(ids)]
    return [(ids[a:b].tolist(), labels[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# Where the loss is


def test_the_loss_is_on_the_answer_and_its_end(tokenizer: PreTrainedTokenizerFast) -> None:
    example = Example("Swap the words.", "sun tree", "tree sun")
    [(asked, _)] = prompts_and_answers(example)
    [(ids, labels)] = encode([example], tokenizer, SEQ_LEN)
    learnt = [label for label in labels if label != IGNORE]
    assert tokenizer.decode(learnt) == " tree sun<eos>"
    assert tokenizer.decode(ids) == f"<bos>{asked} tree sun<eos>"
    assert labels[-len(learnt) :] == learnt == ids[-len(learnt) :]


def learnt_of(samples: list[tuple[list[int], list[int]]]) -> list[int]:
    return [label for _, labels in samples for label in labels if label != IGNORE]


def test_plain_text_is_learnt_whole_and_cut_into_rows(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "The cat and the dog sat by the sea. " * 20
    samples = encode([Example("", "", text)], tokenizer, SEQ_LEN)
    assert samples[0][0][0] == tokenizer.bos_token_id
    assert tokenizer.decode(learnt_of(samples)) == text
    for (_, before), (ids, labels) in itertools.pairwise(samples):
        assert labels[: SEQ_LEN // 4] == [IGNORE] * (SEQ_LEN // 4)
        assert ids[: SEQ_LEN // 4] == before[-SEQ_LEN // 4 :], "a piece goes on where the last one ended"


CHAT = Example("2 + 2?", "", "4", "Be short.", (("Hi.", "Yes?"),))


def test_every_turn_of_the_assistant_is_learnt_and_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    [(ids, labels)] = encode([CHAT], tokenizer, 256)
    assert tokenizer.decode([label for label in labels if label != IGNORE]) == " Yes?<eos> 4<eos>"
    first, second = "### Instruction: Hi.\n\n### Response:", "### Instruction: 2 + 2?\n\n### Response:"
    assert tokenizer.decode(ids) == f"<bos>Be short.\n\n{first} Yes?<eos>{second} 4<eos>"


def test_a_part_of_a_chat_without_an_answer_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = Example("2 + 2?", "", "4", "", (("word " * 40, "Yes?"), ("word " * 40, "No.")))
    samples = encode([chat], tokenizer, 16)
    whole = [token_ids(tokenizer, [text])[0] + [tokenizer.eos_token_id] for text in (" Yes?", " No.", " 4")]
    assert learnt_of(samples) == [token for answer in whole for token in answer]
    assert all(any(label != IGNORE for label in labels) for _, labels in samples)


def test_answer_tokens_counts_the_loss_of_all_ranks_and_micro_steps(batches: Batches) -> None:
    for step in (0, 3, 40):
        parts = [batches.batch(step, micro, rank, 3)["labels"] for micro in range(2) for rank in range(3)]
        assert batches.answer_tokens(step, 3) == sum(int((labels[:, 1:] != IGNORE).sum()) for labels in parts)


@settings(max_examples=150, deadline=None)
@given(
    question=st.text("ab \n", max_size=120).map(lambda text: "q" + text),
    given_text=st.text("cd ", max_size=60),
    said=st.text("xy \n", max_size=120),
    seq_len=st.integers(4, 48),
)
def test_no_sample_is_too_long_or_without_loss(
    tokenizer: PreTrainedTokenizerFast, question: str, given_text: str, said: str, seq_len: int
) -> None:
    example = Example(question, given_text, said)
    samples = encode([example], tokenizer, seq_len)
    asked, expected = token_ids(tokenizer, [*prompts_and_answers(example)[0]])
    whole = [*expected, tokenizer.eos_token_id]
    assert learnt_of(samples) == whole, "every token of the answer is learnt once"
    for ids, labels in samples:
        assert 2 <= len(ids) == len(labels) <= seq_len and labels[0] == IGNORE
        assert any(label != IGNORE for label in labels)
        assert all(label in (IGNORE, token) for token, label in zip(ids, labels, strict=True))
    if len(whole) <= seq_len // 2:
        assert len(samples) == 1, "a short answer is never cut"
    kept = samples[0][0][1 : samples[0][1].index(whole[0])]
    assert samples[0][0][0] == tokenizer.bos_token_id
    assert kept == asked[len(asked) - len(kept) :], "a long question loses its front"


# Packing


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), max_size=200))
def test_packing_keeps_every_sample_once_and_overfills_no_row(lengths: list[int]) -> None:
    rows = pack(lengths, 50)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
    assert all(sum(lengths[sample] for sample in row) <= 50 for row in rows)


def test_packing_fills_the_rows(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = list(Batches(corpus.train, tokenizer, seq_len=128, batch_size=8, seed=0).in_order())
    ids = torch.cat([batch["input_ids"] for batch in rows])
    assert (ids != tokenizer.pad_token_id).float().mean() > 0.93


def test_every_sample_is_in_the_rows_with_positions_from_zero(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, batches: Batches
) -> None:
    found = []
    for batch in batches.in_order():
        fields = (batch["input_ids"], batch["labels"], batch["position_ids"])
        for ids, labels, positions in zip(*fields, strict=True):
            row = samples_of(ids, labels, positions)
            last = (row[-1][0].index(tokenizer.eos_token_id) + 1) if row else 0
            row[-1] = (row[-1][0][:last], row[-1][1][:last])
            found += [(tuple(a), tuple(b)) for a, b in row]
    expected = [(tuple(a), tuple(b)) for a, b in encode(corpus.train, tokenizer, SEQ_LEN)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_samples_do_not_see_one_another(model: LlamaForCausalLM, batches: Batches, use_cache: bool) -> None:
    batch = batches.batch(0)
    with torch.no_grad():
        packed = model(**batch, use_cache=use_cache).logits
    for row in range(3):
        fields = [batch[name][row] for name in ("input_ids", "labels", "position_ids")]
        start = 0
        for ids, _ in samples_of(*fields):
            with torch.no_grad():
                alone = model(input_ids=torch.tensor([ids])).logits[0]
            torch.testing.assert_close(packed[row, start : start + len(ids)], alone, rtol=1e-4, atol=1e-5)
            start += len(ids)
        assert start == SEQ_LEN


def test_without_the_mask_a_cache_would_let_them(model: LlamaForCausalLM, batches: Batches) -> None:
    """Shows why the mask is ours: with a KV cache, position_ids alone do not separate the samples of a row."""
    batch = batches.batch(0)
    bare = {name: batch[name] for name in ("input_ids", "position_ids")}
    with torch.no_grad():
        ours, parted, leaking = (
            model(**inputs, use_cache=cache).logits for inputs, cache in ((batch, True), (bare, False), (bare, True))
        )
    torch.testing.assert_close(ours, parted, rtol=1e-4, atol=1e-5)
    assert (leaking - ours).abs().max() > 0.1


def test_the_loss_of_a_row_is_the_mean_over_its_answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    examples = [Example("Say it.", f"{i}", f"{i} {i}") for i in range(3)]
    [batch] = Batches(examples, tokenizer, seq_len=128, batch_size=1, seed=0).in_order()
    total, count = 0.0, 0
    with torch.no_grad():
        packed = model(**batch).loss
        for ids, labels in encode(examples, tokenizer, 128):
            tokens = sum(label != IGNORE for label in labels)
            loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
            total, count = total + float(loss) * tokens, count + tokens
    assert float(packed) == pytest.approx(total / count, rel=1e-4)


def test_rows_of_one_sample_need_no_mask(tokenizer: PreTrainedTokenizerFast) -> None:
    text = Example("", "", "a line of text\n" * 50)
    batch = Batches([text], tokenizer, seq_len=16, batch_size=2, seed=0).batch(0)
    assert "attention_mask" not in batch
    assert batch["position_ids"].tolist() == [list(range(16))] * 2


# Which rows go where


def test_shapes_and_types(batches: Batches) -> None:
    batch = batches.batch(0, 1, 2, 3)
    assert all(batch[name].shape == (3, SEQ_LEN) for name in ("input_ids", "labels", "position_ids"))
    assert all(batch[name].dtype == torch.int64 for name in ("input_ids", "labels", "position_ids"))
    assert batch["attention_mask"].shape == (3, 1, SEQ_LEN, SEQ_LEN)
    assert batch["attention_mask"].dtype == torch.bool


def test_a_batch_depends_on_its_arguments_alone(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, batches: Batches
) -> None:
    places = [(step, micro, rank, 2) for step in (0, 37, 5) for micro in (0, 1) for rank in (0, 1)]
    fresh = Batches(corpus.train, tokenizer, seq_len=SEQ_LEN, batch_size=3, seed=5, grad_accum=2)
    forward = [batches.batch(*place) for place in places]
    backward = [fresh.batch(*place) for place in reversed(places)]
    assert all(same(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_asking_for_a_batch_draws_no_random_number(batches: Batches) -> None:
    before = torch.get_rng_state()
    batches.batch(11)
    assert torch.equal(before, torch.get_rng_state())


def rows_of_step(batches: Batches, step: int, world_size: int) -> list[tuple[int, ...]]:
    rows = []
    for micro in range(batches.grad_accum):
        for rank in range(world_size):
            rows += map(tuple, batches.batch(step, micro, rank, world_size)["input_ids"].tolist())
    return rows


@settings(max_examples=25, deadline=None)
@given(step=st.integers(0, 10_000), world_size=st.integers(1, 4))
def test_ranks_and_micro_steps_share_no_row(batches: Batches, step: int, world_size: int) -> None:
    rows = rows_of_step(batches, step, world_size)
    assert len(rows) == batches.grad_accum * world_size * 3 == len(set(rows))


def test_an_epoch_shows_every_row_at_most_once_and_the_next_in_another_order(batches: Batches) -> None:
    steps = len(batches) // (2 * 2 * 3)
    first, second = (
        [row for step in range(epoch * steps, (epoch + 1) * steps) for row in rows_of_step(batches, step, 2)]
        for epoch in (0, 1)
    )
    assert len(set(first)) == len(first) > len(batches) - 2 * 2 * 3
    assert len(set(second)) == len(second) and first != second


def test_another_seed_gives_other_batches(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    one, two = (Batches(corpus.train, tokenizer, seq_len=64, batch_size=4, seed=seed) for seed in (0, 1))
    assert not same(one.batch(0), two.batch(0))


def test_a_tiny_data_set_wraps_around(tokenizer: PreTrainedTokenizerFast) -> None:
    examples = [Example("Say it.", "", "x"), Example("Say more.", "", "y z")]
    batches = Batches(examples, tokenizer, seq_len=128, batch_size=4, seed=0)
    assert len(batches) == 1
    for step in range(3):
        ids = batches.batch(step, 0, 1, 2)["input_ids"]
        assert ids.shape == (4, 128) and bool((ids == ids[0]).all())


def test_rows_in_order_come_once_and_can_be_capped(batches: Batches) -> None:
    sizes = [len(batch["input_ids"]) for batch in batches.in_order()]
    assert sum(sizes) == len(batches) and set(sizes[:-1]) == {3}
    assert [len(batch["labels"]) for batch in batches.in_order(7)] == [3, 3, 1]


@pytest.mark.parametrize("place", [(-1, 0, 0, 1), (0, 2, 0, 1), (0, 0, 2, 2), (0, 0, -1, 2), (0, -1, 0, 1)])
def test_a_place_that_does_not_exist_is_refused(batches: Batches, place: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[train.batches\] there is no step"):
        batches.batch(*place)


@pytest.mark.parametrize("change", [{"seq_len": 3}, {"batch_size": 0}, {"grad_accum": 0}])
def test_sizes_that_hold_nothing_are_refused(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, change: dict[str, int]
) -> None:
    sizes = {"seq_len": 64, "batch_size": 2, "grad_accum": 1, **change}
    with pytest.raises(ValueError, match=r"\[train.batches\] seq_len must be at least 4"):
        Batches(corpus.train, tokenizer, seed=0, **sizes)
    with pytest.raises(ValueError, match=r"\[train.batches\] there are no examples"):
        Batches([], tokenizer, seq_len=64, batch_size=2, seed=0)
