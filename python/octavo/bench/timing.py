# SPDX-License-Identifier: Apache-2.0
"""Times contenders side by side. Machines are noisy and drift, so contenders take turns and ratios are taken per
round."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

import torch

Seconds = dict[str, list[float]]


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    before: Callable[[str], object] = lambda name: None,
) -> Seconds:
    """Returns the seconds of every contender in every round. A round runs each of them once, in order, after
    `before`."""
    seconds: Seconds = {name: [] for name in contenders}
    for turn in range(warmup + rounds):
        for name, run in contenders.items():
            before(name)
            start = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Inside this context torch's kernels and ours run on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ratio(seconds: Seconds, slow: str, fast: str) -> float:
    """Returns how many times longer `slow` takes than `fast`: the median over rounds."""
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def typical(seconds: Seconds, name: str) -> float:
    return median(seconds[name])


def is_wanted(words: Sequence[str], name: str) -> bool:
    """Whether a contender is among those that were asked for, as classes or as `octavo train` names optimizers
    (paged-adamw8bit); no words ask for all."""
    return not words or any(_plain(word) in _plain(name) for word in words)


def check_words(bench: str, words: Sequence[str], names: Sequence[str], *remarks: str) -> None:
    """Raises ValueError for a word that asks for no contender: with the names of all, and `remarks` on what is
    missing."""
    for word in words:
        if not any(is_wanted([word], name) for name in names):
            missing = "".join(f"; {remark}" for remark in remarks)
            raise ValueError(f"[{bench}] none of these names has '{word}' in it: {'; '.join(names)}{missing}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "")
