# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens for training: encoded, cut, packed, and given to the ranks.

A row of `seq_len` tokens holds several short samples that cannot see one another. Which rows a rank gets in which step
is a pure function of the arguments, so a resumed run continues with exactly the batches of the interrupted one.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from octavo.train.data.dataset import Example
from octavo.train.data.rng import Rng
from octavo.train.data.tokenizer import prompts_and_answers, token_ids

IGNORE = -100
"""The label that transformers' loss leaves out."""
OPEN_ROWS = 32
"""How many rows packing keeps open: enough for over 95 % of full rows, few enough to stay linear."""

Sample = tuple[list[int], list[int]]
"""Token ids and their labels, of equal length."""


class Batches:
    """The rows of one split. They are packed once, when this is made; `batch` only picks rows.

    `seq_len` is in tokens, `batch_size` in rows per rank and micro-step, `grad_accum` in micro-steps per step.
    Raises ValueError for an empty split or sizes that hold no sample.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: PreTrainedTokenizerFast,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        grad_accum: int = 1,
    ) -> None:
        if seq_len < 4 or batch_size < 1 or grad_accum < 1:
            raise ValueError(
                f"[train.batches] seq_len must be at least 4 and batch_size and grad_accum at least 1, "
                f"not {seq_len}, {batch_size} and {grad_accum}"
            )
        if not examples:
            raise ValueError("[train.batches] there are no examples; at least one is needed")
        self.batch_size, self.grad_accum, self.seed = batch_size, grad_accum, seed
        samples = encode(examples, tokenizer, seq_len)
        order = Rng("pack", seed).permutation(len(samples))
        shuffled = [samples[i] for i in order]
        rows = [[shuffled[i] for i in row] for row in pack([len(ids) for ids, _ in shuffled], seq_len)]
        self._rows = _Table(rows, seq_len, tokenizer.pad_token_id)
        # One epoch is read at a time; a second entry serves a step that looks back.
        self._order = lru_cache(maxsize=2)(lambda epoch: Rng("epoch", seed, epoch).permutation(len(self)))

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def batch(self, step: int, micro_step: int = 0, rank: int = 0, world_size: int = 1) -> dict[str, Tensor]:
        """Returns the rows of one rank in one micro-step, as keyword arguments of a transformers model.

        There are always input_ids, labels (-100 where there is no loss) and position_ids, int64 [batch_size, seq_len].
        If rows of the split hold several samples, there is also attention_mask, bool [batch_size, 1, seq_len, seq_len],
        true where a token sees another (as sdpa attention reads it).

        Within a step no row comes twice, unless the data have fewer rows than a step takes. The rows that do not fill
        an epoch's last step are left out of that epoch; the next one is shuffled anew. Raises ValueError for a step,
        micro-step or rank that does not exist.
        """
        if not (step >= 0 and 0 <= micro_step < self.grad_accum and 0 <= rank < world_size):
            raise ValueError(
                f"[train.batches] there is no step {step}, micro_step {micro_step}, rank {rank}: steps begin at 0, "
                f"micro_step is below {self.grad_accum}, rank below {world_size}"
            )
        step_rows = self.grad_accum * world_size * self.batch_size
        first = (micro_step * world_size + rank) * self.batch_size
        return self._rows.batch(self._step_rows(step, first, self.batch_size, step_rows))

    def answer_tokens(self, step: int, world_size: int = 1) -> int:
        """Returns how many tokens are in the loss of a step, those of all ranks and micro-batches together."""
        step_rows = self.grad_accum * world_size * self.batch_size
        return self._rows.answer_tokens(self._step_rows(step, 0, step_rows, step_rows))

    def in_order(self, max_rows: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Yields the rows in the order in which they were packed, each once and at most `max_rows`, in batches of the
        same form as `batch`."""
        count = len(self) if max_rows is None else min(max_rows, len(self))
        for start in range(0, count, self.batch_size):
            yield self._rows.batch(list(range(start, min(start + self.batch_size, count))))

    def _step_rows(self, step: int, first: int, count: int, step_rows: int) -> list[int]:
        """Returns the numbers of `count` rows, from the `first` on, among the `step_rows` that a step takes."""
        epoch, turn = divmod(step, max(1, len(self) // step_rows))
        order, start = self._order(epoch), turn * step_rows + first
        return [order[i % len(self)] for i in range(start, start + count)]


class _Table:
    """The packed rows, int32 [rows, 4, seq_len]: token ids, labels, positions, number of the sample."""

    def __init__(self, rows: list[list[Sample]], seq_len: int, pad_id: int) -> None:
        self._rows = torch.stack([_row(samples, seq_len, pad_id) for samples in rows])
        self._packed = any(len(samples) > 1 for samples in rows)

    def __len__(self) -> int:
        return len(self._rows)

    def answer_tokens(self, indices: list[int]) -> int:
        """Returns how many tokens are in the loss of these rows."""
        return _loss_tokens(self._rows[indices, 1])

    def batch(self, indices: list[int]) -> dict[str, Tensor]:
        ids, labels, positions, parts = self._rows[indices].long().unbind(1)
        rows = {"input_ids": ids, "labels": labels, "position_ids": positions}
        if self._packed:
            # transformers finds packed samples by position_ids only while no KV cache is in use, which is not its
            # default. A mask of our own does not depend on that.
            past = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            rows["attention_mask"] = ((parts[:, :, None] == parts[:, None, :]) & past)[:, None]
        return rows


def _row(samples: list[Sample], seq_len: int, pad_id: int) -> Tensor:
    """Returns one row, int32 [4, seq_len]. Padding counts as the end of the last sample: nothing looks back at it."""
    ids, labels, positions, parts = [], [], [], []
    for part, (sample_ids, sample_labels) in enumerate(samples):
        ids += sample_ids
        labels += sample_labels
        positions += range(len(sample_ids))
        parts += [part] * len(sample_ids)
    free = seq_len - len(ids)
    ids += [pad_id] * free
    labels += [IGNORE] * free
    positions += range(positions[-1] + 1, positions[-1] + 1 + free)
    parts += [parts[-1]] * free
    return torch.tensor([ids, labels, positions, parts], dtype=torch.int32)


def answer_tokens(batch: dict[str, Tensor]) -> int:
    """Returns how many tokens are in the loss of a batch."""
    return _loss_tokens(batch["labels"])


def _loss_tokens(labels: Tensor) -> int:
    """Returns how many labels are in the loss: the first token of a row is predicted from nothing."""
    return int((labels[:, 1:] != IGNORE).sum())


def encode(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, seq_len: int) -> list[Sample]:
    """Returns the samples, each of 2 to `seq_len` tokens with at least one in the loss.

    The loss is on every answer and its <eos>, or on the whole of a plain text, every token once. A question that does
    not fit into the row with its answer loses its front, but keeps at least half of the row.
    """
    chats = [prompts_and_answers(example) for example in examples]
    prompts = iter(token_ids(tokenizer, [asked for chat in chats for asked, _ in chat]))
    answers = iter(token_ids(tokenizer, [said for chat in chats for _, said in chat]))
    samples: list[Sample] = []
    for example, chat in zip(examples, chats, strict=True):
        ids, labels = [tokenizer.bos_token_id], [IGNORE]
        for asked, said in zip(islice(prompts, len(chat)), islice(answers, len(chat)), strict=True):
            learnt = said if example.is_text else [*said, tokenizer.eos_token_id]
            room = max(seq_len - 1 - len(learnt), (seq_len - 1) // 2)
            kept = asked[max(0, len(asked) - room) :]
            ids += kept + learnt
            labels += [IGNORE] * len(kept) + learnt
        samples += _windows(ids, labels, seq_len)
    return samples


def _windows(ids: list[int], labels: list[int], seq_len: int) -> list[Sample]:
    """Returns one sample, or several where it is longer than a row; each next one begins with the end of the one
    before.

    A part of a chat in which the assistant says nothing teaches nothing and is left out.
    """
    context = seq_len // 4
    samples = [(ids[:seq_len], labels[:seq_len])]
    for start in range(seq_len, len(ids), seq_len - context):
        end = start + seq_len - context
        samples.append((ids[start - context : end], [IGNORE] * context + labels[start:end]))
    return [sample for sample in samples if any(label != IGNORE for label in sample[1])]


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Returns the samples of each row. Sample i, of `lengths[i]` tokens, goes to the fullest open row with room for
    it."""
    done: list[list[int]] = []
    open_rows: list[tuple[int, list[int]]] = []  # free tokens, samples
    for sample, length in enumerate(lengths):
        fitting = [row for row in open_rows if row[0] >= length]
        free, row = min(fitting, key=lambda r: r[0]) if fitting else (seq_len, [])
        if fitting:
            open_rows.remove((free, row))
        open_rows.append((free - length, [*row, sample]))
        if len(open_rows) > OPEN_ROWS:
            fullest = min(open_rows, key=lambda r: r[0])
            open_rows.remove(fullest)
            done.append(fullest[1])
    return done + [row for _, row in open_rows]
