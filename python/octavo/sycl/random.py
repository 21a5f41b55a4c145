# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the devices. A seed gives the same numbers as on the CPU."""

from collections.abc import Iterable

from torch import Generator, Tensor

from octavo import _C
from octavo.arguments import is_whole_number
from octavo.sycl.devices import Device, device_count, index_of


def _generator(device: Device = None) -> Generator:
    return _C.sycl.default_generator(index_of(device))


def _checked(seed: int, function: str) -> int:
    """Returns a seed as torch's generators count them, from 0. Raises TypeError or ValueError `[sycl.function]` for
    what is no seed."""
    if not is_whole_number(seed):
        raise TypeError(f"[sycl.{function}] expected an int as the seed, got {type(seed).__name__}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"[sycl.{function}] expected a seed from -2^63 to 2^64 - 1, got {seed}")
    return int(seed) % 2**64


def manual_seed(seed: int) -> None:
    """Sets the seed of the current device. A negative seed is taken modulo 2^64, as torch does."""
    _generator().manual_seed(_checked(seed, "manual_seed"))


def manual_seed_all(seed: int) -> None:
    """Sets the seed of all devices. ``torch.manual_seed`` calls it, so it does not look for devices, which takes
    time."""
    _C.sycl.seed_all(_checked(seed, "manual_seed_all"))


def seed() -> int:
    return _generator().seed()


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Device = None) -> Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: Tensor, device: Device = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
