# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that public calls have in common. Errors begin with the public name ``[where]``."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from os import PathLike
from os.path import abspath, isdir

from torch import Tensor

from octavo._C import StatePaging


def require(condition: bool, where: str, expected: str, got: object) -> None:
    """Raises ValueError, which says what was expected and what was ``got``, unless the condition is met."""
    if not condition:
        raise ValueError(f"[{where}] expected {expected}, got {got}")


def require_known(given: Iterable[object], known: Sequence[str], what: str, where: str) -> None:
    """Raises ValueError for keys that ``what`` was given and that are not among the known ones."""
    if unknown := set(given) - set(known):
        raise ValueError(
            f"[{where}] {what} has unknown keys: {', '.join(sorted(map(str, unknown)))}; known are {', '.join(known)}"
        )


def require_seed(seed: int, where: str) -> None:
    """Raises ValueError for what is no seed: an integer from 0 to 2^64 - 1."""
    if isinstance(seed, Integral) and 0 <= seed < 2**64:
        return
    raise ValueError(f"[{where}] seed must be an integer from 0 to 2^64 - 1, the same on all ranks, got {seed!r}")


def require_ranks(ranks: Sequence[int], world_size: int, where: str) -> None:
    """Raises ValueError unless these ranks, by which states were saved, are different ones of a world of this size."""
    for place, rank in enumerate(ranks):
        if not 0 <= rank < world_size:
            raise ValueError(
                f"[{where}] a state is of rank {rank}, and those of a world of {world_size} are of ranks below "
                f"{world_size}: pass what state_dict() returned on the ranks of one run"
            )
        if rank in ranks[:place]:
            raise ValueError(f"[{where}] there are two states of rank {rank}: pass one of each rank")


def page_folder(page_dir: str | PathLike | None, is_paged: bool, where: str) -> str | None:
    """Returns ``page_dir`` as an absolute path, because files are made there later, when another directory may be the
    current one. Raises ValueError for an ``is_paged`` that is no bool, for a folder without paged states and for one
    that is no directory, TypeError for what is no path."""
    require(isinstance(is_paged, bool), where, "is_paged as True or False", repr(is_paged))
    if page_dir is None:
        return None
    if not isinstance(page_dir, str | PathLike):
        raise TypeError(f"[{where}] expected page_dir as the path of a folder, got {type(page_dir).__name__}")
    if not is_paged:
        raise ValueError(f"[{where}] page_dir is for paged states, got '{page_dir}': pass is_paged=True, too")
    if not isdir(page_dir):
        raise ValueError(f"[{where}] page_dir '{page_dir}' is no directory: make it first")
    return abspath(page_dir)


def paging_of(is_paged: bool, page_dir: str | PathLike | None, where: str) -> StatePaging:
    """Returns where the states of compressors are kept. Raises what ``page_folder`` raises."""
    return StatePaging(is_paged, page_folder(page_dir, is_paged, where) or "")


def is_whole_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) < math.inf


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number of a type that operators take. It may be a tensor of one element: a learning
    rate that a schedule changes in place."""
    is_of_numpy = isinstance(value, Real) and hasattr(value, "dtype")
    is_one = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, float | Integral) or is_of_numpy
    try:
        return is_one and math.isfinite(float(value))
    except (OverflowError, RuntimeError):  # a whole number beyond float64, a complex tensor
        return False
