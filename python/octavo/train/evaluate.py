# SPDX-License-Identifier: Apache-2.0
"""What a model has learnt: its loss on held-out rows, how often it answers exactly, and a few answers.

Nothing here draws a random number or changes a model: one that was in training mode is so again afterwards.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from octavo.train.data.batches import answer_tokens
from octavo.train.data.dataset import Example
from octavo.train.data.tokenizer import answer, prompts_and_answers, token_ids

GROUP = 64
"""How many questions are answered together."""
OPENING = 16
"""How many tokens of a plain text are given to the model to be continued."""


@dataclass(frozen=True)
class Answer:
    """A question, the answer in the data, and the model's answer. For plain text the question is its opening."""

    instruction: str
    input: str
    expected: str
    answer: str
    correct: bool


def summed_loss(model: PreTrainedModel, batches: Iterable[dict[str, Tensor]]) -> tuple[float, int]:
    """Returns the losses of all loss tokens in nats, added up, and how many tokens these are."""
    total, tokens = 0.0, 0
    with _evaluating(model):
        for batch in batches:
            count = answer_tokens(batch)
            moved = {name: value.to(_device(model)) for name, value in batch.items()}
            total += float(model(**moved, use_cache=False).loss) * count
            tokens += count
    return total, tokens


def exact_match(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    max_items: int = 128,
) -> float:
    """Returns the share, 0 to 1, of the first `max_items` questions that are answered exactly, outer spaces aside.

    Raises ValueError where there is no question.
    """
    asked = list(examples[:max_items])
    if not asked:
        raise ValueError("[train.evaluate] there are no examples; at least one is needed")
    expected = [answer(example) for example in asked]
    longest = max(map(len, token_ids(tokenizer, expected)))  # a longer answer is wrong anyway
    given = _answers(model, tokenizer, asked, longest + 1)
    return sum(one.correct for one in given) / len(asked)


def sample_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    n: int,
    *,
    max_new_tokens: int = 48,
) -> list[Answer]:
    """Returns the model's most likely answers to the first `n` different examples, in their order."""
    return _answers(model, tokenizer, list(dict.fromkeys(examples))[:n], max_new_tokens)


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def _device(model: PreTrainedModel) -> torch.device:
    return next(model.parameters()).device


def _answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, examples: list[Example], max_new_tokens: int
) -> list[Answer]:
    longest = max(2, model.config.max_position_embeddings - max_new_tokens)
    questions = [_end_of(_question(tokenizer, example), longest) for example in examples]
    # Questions of similar length are in one group, so that little of a group is padding.
    order = sorted(range(len(examples)), key=lambda i: len(questions[i]))
    answers: dict[int, Answer] = {}
    with _evaluating(model):
        for start in range(0, len(order), GROUP):
            group = order[start : start + GROUP]
            texts = _continue(model, tokenizer, [questions[i] for i in group], max_new_tokens)
            for i, text in zip(group, texts, strict=True):
                answers[i] = _judge(tokenizer, examples[i], questions[i], text)
    return [answers[i] for i in range(len(examples))]


def _question(tokenizer: PreTrainedTokenizerFast, example: Example) -> list[int]:
    if example.is_text:
        opening = token_ids(tokenizer, [example.output])[0][:OPENING]
        while len(opening) > 1 and tokenizer.decode(opening).endswith("\ufffd"):  # a part of a character
            opening.pop()
        return [tokenizer.bos_token_id, *opening]
    ids = [tokenizer.bos_token_id]
    *history, (asked, _) = prompts_and_answers(example)
    for earlier, said in history:
        ids += [*token_ids(tokenizer, [earlier + said])[0], tokenizer.eos_token_id]
    return ids + token_ids(tokenizer, [asked])[0]


def _end_of(question: list[int], longest: int) -> list[int]:
    """Returns a question of at most ``longest`` tokens: its beginning-of-sequence token and its end."""
    return question if len(question) <= longest else [question[0], *question[1 - longest :]]


def _continue(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    questions: list[list[int]],
    max_new_tokens: int,
) -> list[str]:
    padded = tokenizer.pad({"input_ids": questions}, padding_side="left", return_tensors="pt")
    padded = padded.to(_device(model))
    greedy = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    out = model.generate(**padded, generation_config=greedy)
    return tokenizer.batch_decode(out[:, padded["input_ids"].shape[1] :], skip_special_tokens=True)


def _judge(tokenizer: PreTrainedTokenizerFast, example: Example, question: list[int], text: str) -> Answer:
    if example.is_text:
        opening = tokenizer.decode(question, skip_special_tokens=True)
        expected = example.output[len(opening) :]
        return Answer(opening, "", expected, text, text.strip() == expected.strip())
    correct = text.strip() == example.output.strip()
    return Answer(example.instruction, example.input, example.output, text, correct)
