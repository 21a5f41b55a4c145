# SPDX-License-Identifier: Apache-2.0
"""What a model has learnt: a model that was taught a few answers gives them, both alone and in a group."""

import copy
import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from octavo.train import evaluate
from octavo.train.data.batches import IGNORE, Batches
from octavo.train.data.dataset import Corpus, Example
from octavo.train.data.tokenizer import prompts_and_answers, train_tokenizer
from octavo.train.evaluate import exact_match, sample_answers, summed_loss

pytestmark = pytest.mark.timeout(60)

TAUGHT = [
    Example("Copy.", "a", "a"),
    Example("Copy the long text that stands here.", "b c d e f", "b c d e f"),
    Example("What is one plus one?", "", "2"),
    Example("Go.", "", "on and on"),
]
UNTAUGHT = [Example("Say nothing.", "at all", "no such thing as this")]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(Corpus("taught", TAUGHT, [], True, ""), 300)


@pytest.fixture(scope="module")
def batches(tokenizer: PreTrainedTokenizerFast) -> Batches:
    return Batches(TAUGHT, tokenizer, seq_len=48, batch_size=1, seed=0)


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast, batches: Batches) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, use_cache=False, attention_dropout=0.1)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):
        for batch in batches.in_order():
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def test_taught_answers_are_given(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    answers = sample_answers(model, tokenizer, TAUGHT + UNTAUGHT, 5)
    assert [answer.correct for answer in answers] == [True] * 4 + [False]
    assert [answer.instruction for answer in answers] == [e.instruction for e in TAUGHT + UNTAUGHT]
    assert [answer.answer.strip() for answer in answers[:4]] == [example.output for example in TAUGHT]
    assert exact_match(model, tokenizer, TAUGHT + UNTAUGHT) == pytest.approx(0.8)
    assert exact_match(model, tokenizer, TAUGHT + UNTAUGHT, max_items=4) == 1.0


def test_a_question_is_as_long_as_the_model_has_positions_for(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    whole = evaluate._continue
    monkeypatch.setattr(evaluate, "_continue", lambda *given: asked.extend(given[2]) or whole(*given))
    long = dataclasses.replace(TAUGHT[0], instruction="again and " * 4000 + TAUGHT[0].instruction)
    (short_one, long_one) = sample_answers(model, tokenizer, [TAUGHT[1], long], 2, max_new_tokens=8)
    positions = model.config.max_position_embeddings - 8
    (short, cut) = sorted(asked, key=len)
    assert len(short) < 50 and len(cut) == positions and cut[0] == short[0] == tokenizer.bos_token_id
    assert short_one.correct and long_one.instruction == long.instruction


def test_only_as_many_are_answered_as_are_asked_for(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert len(sample_answers(model, tokenizer, TAUGHT, 2)) == 2
    assert sample_answers(model, tokenizer, TAUGHT, 0) == []
    # no question is sampled twice
    assert len(sample_answers(model, tokenizer, [TAUGHT[0], TAUGHT[0], TAUGHT[1]], 3)) == 2


def test_an_answer_does_not_depend_on_its_group(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sample_answers(model, tokenizer, TAUGHT + UNTAUGHT, 5)
    monkeypatch.setattr(evaluate, "GROUP", 1)
    assert sample_answers(model, tokenizer, TAUGHT + UNTAUGHT, 5) == together


def test_an_answer_is_the_most_likely_one(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Compares with the simplest loop: no cache, no padding, one token at a time."""
    example = UNTAUGHT[0]
    [(text, _)] = prompts_and_answers(example)
    ids = tokenizer(text)["input_ids"]
    asked = len(ids)
    still = copy.deepcopy(model).eval()
    for _ in range(12):
        ids.append(int(still(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    [answer] = sample_answers(model, tokenizer, [example], 1, max_new_tokens=12)
    assert answer.answer == tokenizer.decode(ids[asked:], skip_special_tokens=True)


def test_the_loss_weighs_every_token_the_same(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batches: Batches
) -> None:
    rows = list(Batches(TAUGHT, tokenizer, seq_len=48, batch_size=100, seed=0).in_order())
    assert len(rows) == 1 and len(batches) == 2
    with torch.no_grad():
        expected = float(copy.deepcopy(model).eval()(**rows[0]).loss)
    total, tokens = summed_loss(model, batches.in_order())
    assert tokens == (rows[0]["labels"][:, 1:] != IGNORE).sum()
    assert total / tokens == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_no_batches_is_that_of_no_tokens(model: LlamaForCausalLM) -> None:
    assert summed_loss(model, []) == (0.0, 0)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batches: Batches, training: bool
) -> None:
    model.train(training)
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    summed_loss(model, batches.in_order())
    exact_match(model, tokenizer, TAUGHT)
    assert model.training is training
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_train_mode_returns_after_an_error(
    model: LlamaForCausalLM, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("no")

    model.train()
    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(RuntimeError, match="no"):
        summed_loss(model, batches.in_order())
    assert model.training and torch.is_grad_enabled()


def test_plain_text_is_continued(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    text = Example("", "", "on and on and so forth without an end, or so it seemed to all of them")
    [answer] = sample_answers(model, tokenizer, [text], 1, max_new_tokens=4)
    assert answer.instruction and text.output == answer.instruction + answer.expected
    assert not answer.correct


def test_an_opening_of_plain_text_ends_with_a_whole_character(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Characters that the tokenizer has not seen are several tokens, one for each byte."""
    for length in range(20, 24):
        text = Example("", "", "a" * (length - 20) + "佑噈卾上佇侩哗垸厣土唹嚱" * 3)
        [answer] = sample_answers(model, tokenizer, [text], 1, max_new_tokens=4)
        assert text.output == answer.instruction + answer.expected


def test_no_examples_are_an_error(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match=r"\[train.evaluate\] there are no examples"):
        exact_match(model, tokenizer, [])
