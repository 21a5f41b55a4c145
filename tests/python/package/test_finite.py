# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from octavo.finite import all_finite


def test_a_value_beyond_the_range_of_another_tensors_dtype_is_finite():
    half, large = torch.ones(3, dtype=torch.float16), torch.full((3,), 1e5)
    assert all_finite([half, large]) and all_finite([large, half])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_bad_value_of_any_tensor_is_found(bad, dtype):
    tensors = [torch.zeros(0), torch.ones(2, 3), torch.ones(1000, dtype=dtype)]
    assert all_finite(tensors)
    tensors[2][777] = bad
    assert not all_finite(tensors)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits_are_looked_at_too(dtype):
    values = torch.ones(100).to(dtype)
    assert all_finite([values])
    values[7] = math.nan
    assert not all_finite([torch.ones(3), values])


@pytest.mark.parametrize("bad", [complex(0, math.inf), complex(math.nan, 0)])
def test_both_parts_of_complex_values_are_looked_at(bad):
    values = torch.full((100,), 1 + 2j)
    assert all_finite([values, values.conj()])
    values[7] = bad
    assert not all_finite([values]) and not all_finite([values.conj()])


def test_no_values_are_finite():
    assert all_finite([]) and all_finite([torch.zeros(0)])
