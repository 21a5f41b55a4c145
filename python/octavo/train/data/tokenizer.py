# SPDX-License-Identifier: Apache-2.0
"""A byte-level BPE tokenizer trained on the data set itself, and the Alpaca prompt, also for chats.

Any text can be encoded, because bytes are the alphabet. Each digit is a token of its own, so that a model can compute
with numbers. Each heading of the prompt is one token, which keeps short tasks short.
"""

from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from octavo.train.data.dataset import Corpus, Example

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
HEADINGS = ("### Instruction:", "\n\n### Input:", "\n\n### Response:")
MIN_VOCAB_SIZE = 256 + 3 + len(HEADINGS)

_LONGEST_WORD = 1000
"""The longest word, in bytes, that the vocabulary is made of. The time of BpeTrainer grows with the square of a word's
length, and for a picture in letters it would be hours. Words of a language are shorter by far."""


def prompts_and_answers(example: Example) -> list[tuple[str, str]]:
    """Returns the prompts of an example, each with its answer: one, or as many as a chat has. <eos> follows each
    answer."""
    if example.is_text:
        return [("", example.output)]
    asked = [(question, "", said) for question, said in example.history]
    asked.append((example.instruction, example.input, example.output))
    texts = [(_headed(question, given), f" {said}") for question, given, said in asked]
    if example.system:
        (first, said), *others = texts
        return [(f"{example.system}\n\n{first}", said), *others]
    return texts


def answer(example: Example) -> str:
    """Returns what the model is to say after the prompt, its leading space included; of a chat the last answer."""
    return prompts_and_answers(example)[-1][1]


def train_tokenizer(corpus: Corpus, vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of at most `vocab_size` tokens (fewer where the data are small), trained on the train split.

    The same data give the same tokenizer. Calling it on a text puts <bos> in front.
    Raises ValueError where `vocab_size` cannot hold the 256 bytes, the special tokens and the headings.
    """
    size = default_vocab_size(corpus) if vocab_size is None else vocab_size
    if size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"[train.tokenizer] a vocabulary of {size} tokens is too small; it needs at least {MIN_VOCAB_SIZE}"
        )
    bpe = Tokenizer(models.BPE())
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(HEADINGS),
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    cut = pre_tokenizers.Split(Regex(f".{{{_LONGEST_WORD}}}"), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*words, cut])
    bpe.train_from_iterator(_texts(corpus), trainer)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(words)  # a text is encoded in time that grows with its length
    bpe.add_tokens([AddedToken(heading, normalized=False) for heading in HEADINGS])
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bpe.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def token_ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """Returns the tokens of each text, with nothing put in front. A "<eos>" in the data is text, not an end."""
    return tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def default_vocab_size(corpus: Corpus) -> int:
    """Returns 384 for the bundled tasks, which are learnt sooner from small pieces, and 2048 for other data."""
    return 384 if corpus.checkable else 2048


def _texts(corpus: Corpus) -> Iterator[str]:
    for example in corpus.train:
        for asked, said in prompts_and_answers(example):
            yield asked
            yield said


def _headed(question: str, given: str) -> str:
    """Returns a question under its headings. A space follows each heading, so that a word is the same token wherever it
    is and can be copied."""
    instruction, heading, response = HEADINGS
    middle = f"{heading} {given}" if given else ""
    return f"{instruction} {question}{middle}{response}"
