# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the same tests on every accelerator that is here."""

import pytest
import torch

from octavo.accelerator import Accelerator, CUDA_Accelerator


def draw(accelerator):
    return torch.rand(8, device=accelerator.device(0)).tolist()


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 1, 2**64 - 1, -5])
def test_a_seed_decides_the_numbers(accelerator, seed):
    accelerator.manual_seed(seed)
    assert accelerator.initial_seed() == seed % 2**64
    first = draw(accelerator)
    assert draw(accelerator) != first
    accelerator.manual_seed_all(seed)
    assert draw(accelerator) == first


def test_a_seed_means_what_it_means_to_torch(accelerator):
    accelerator.manual_seed(123)
    ours = draw(accelerator)
    torch.manual_seed(123)
    assert draw(accelerator) == ours


@pytest.mark.parametrize("which", [(), (0,)], ids=["current", "index"])
def test_a_state_comes_back(accelerator, which):
    state = accelerator.get_rng_state(*which)
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = draw(accelerator)
    accelerator.set_rng_state(state, *which)  # with an index, upstream's function raises TypeError on the CPU
    assert draw(accelerator) == first


def test_the_default_generator_is_the_one_that_is_seeded(accelerator):
    accelerator.manual_seed(11)
    first = draw(accelerator)
    generator = accelerator.default_generator(0)
    generator.manual_seed(11)
    assert torch.rand(8, device=accelerator.device(0), generator=generator).tolist() == first


def test_the_module_of_random_numbers(accelerator):
    assert callable(accelerator.random().get_rng_state) and callable(accelerator.random().manual_seed)


class LazyModule:
    """A device that is initialized at its first use, as torch.cuda is: until then seeds wait, in their order."""

    def __init__(self) -> None:
        self.generator = torch.default_generator
        self.waiting: list[int] | None = []

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed) if self.waiting is None else self.waiting.append(seed)

    manual_seed_all = manual_seed

    def init(self) -> None:
        waiting, self.waiting = self.waiting or [], None
        for seed in waiting:
            self.manual_seed(seed)


@pytest.mark.parametrize("seed_by", ["manual_seed", "manual_seed_all"])
def test_a_seed_before_the_first_use_of_the_device_is_not_lost_to_an_earlier_one(seed_by):
    module = LazyModule()

    class Lazy(Accelerator):
        def _torch_module(self, function: str = "") -> LazyModule:
            return module

    module.manual_seed_all(1)  # torch.manual_seed does this to each device type
    getattr(Lazy("cpu"), seed_by)(2)
    module.init()
    assert module.generator.initial_seed() == 2


@pytest.mark.parametrize("seed_by", ["manual_seed", "manual_seed_all"])
def test_torchs_own_queue_keeps_the_order_of_seeds(seed_by, monkeypatch):
    generator = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", type(torch.cuda._lazy_seed_tracker)())
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda.random, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda.random, "device_count", lambda: 1)
    monkeypatch.setattr(CUDA_Accelerator, "device_count", lambda self: 1)
    torch.manual_seed(1)
    getattr(CUDA_Accelerator(), seed_by)(2)
    for call, _ in filter(None, torch.cuda._lazy_seed_tracker.get_calls()):  # as torch.cuda.init() does
        call()
    assert generator.initial_seed() == 2
