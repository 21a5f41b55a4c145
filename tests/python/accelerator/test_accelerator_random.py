# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the same tests on every accelerator that is here."""

import pytest
import torch


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
    accelerator.set_rng_state(state, *which)  # with an index, upstream's raises TypeError on the CPU
    assert draw(accelerator) == first


def test_the_default_generator_is_the_one_that_is_seeded(accelerator):
    accelerator.manual_seed(11)
    first = draw(accelerator)
    generator = accelerator.default_generator(0)
    generator.manual_seed(11)
    assert torch.rand(8, device=accelerator.device(0), generator=generator).tolist() == first


def test_the_module_of_random_numbers(accelerator):
    assert callable(accelerator.random().get_rng_state) and callable(accelerator.random().manual_seed)
