# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import octavo
import octavo.ops.xpu_packbits as xpu_pack

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def test_the_example_of_the_document():
    values = torch.tensor([1, -1, +0.0, -0.0, 2, -3, float("nan"), float("inf")])
    assert octavo.packbits(values).tolist() == [0xAB]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1000, 70001])
def test_equals_numpy(dtype, count):
    values = torch.randn(count).to(dtype)
    expected = np.packbits(~torch.signbit(values.float()).numpy())
    packed = octavo.packbits(values)
    assert packed.dtype == torch.uint8 and packed.numpy().tobytes() == expected.tobytes()
    signs = octavo.unpackbits(packed, count)
    assert torch.equal(signs, torch.where(torch.signbit(values.float()), -1.0, 1.0))


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=200))
@settings(max_examples=100, deadline=None)
def test_signs_come_back(values):
    tensor = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(
        xpu_pack.unpackbits(xpu_pack.packbits(tensor, len(values), 0), len(values), 0) < 0,
        torch.signbit(tensor),
    )


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::3, 1::2],
        lambda t: t[0, 0],
        lambda t: t[:0],
        lambda t: t.expand(2, *t.shape),
    ],
)
def test_any_strides_are_packed_in_row_major_order(view):
    tensor = view(torch.randn(31, 33))
    assert torch.equal(octavo.packbits(tensor), octavo.packbits(tensor.contiguous().clone()))


def test_a_misaligned_tensor():
    base = torch.randn(1001)
    assert torch.equal(octavo.packbits(base[1:]), octavo.packbits(base[1:].clone()))


def test_unpacking_into_memory_that_is_there():
    tensor, out = torch.randn(1001), torch.empty(1001)
    packed = octavo.packbits(tensor)
    assert octavo.unpackbits(packed, 1001, out=out) is out
    assert torch.equal(out, octavo.unpackbits(packed, 1001))
    for bad in (torch.empty(1000), torch.empty(1001, dtype=torch.float64), torch.empty(2002)[::2]):
        with pytest.raises(ValueError, match="expected out"):
            octavo.unpackbits(packed, 1001, out=bad)


def test_unpacking_into_memory_that_autograd_needs_is_seen():
    out = octavo.unpackbits(octavo.packbits(torch.ones(8)), 8)
    weight = torch.ones(8, requires_grad=True)
    product = (out * weight).sum()
    octavo.unpackbits(octavo.packbits(-torch.ones(8)), 8, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_result_in_memory_that_is_there_is_traced():
    packed = octavo.packbits(torch.randn(100))
    torch.library.opcheck(torch.ops.octavo.unpackbits_out, (packed,), dict(out=torch.empty(100)))

    def signs(out):
        return octavo.unpackbits(packed, 100, out=out)

    compiled = torch.compile(signs, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.empty(100)), octavo.unpackbits(packed, 100))


def test_sizes_may_be_numpys():
    tensor = torch.randn(3, 5)
    packed = octavo.packbits(tensor, np.prod(tensor.shape))
    assert torch.equal(octavo.unpackbits(packed=packed, input_size=np.int64(15)), octavo.unpackbits(packed, 15, rank=0))
    with pytest.raises(TypeError, match=r"\[ops\.packbits\] rank must be of type int, got str"):
        octavo.packbits(tensor, rank="cpu")


def test_input_size_takes_the_first_elements():
    tensor = torch.randn(100)
    assert torch.equal(octavo.packbits(tensor, 20), octavo.packbits(tensor[:20]))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: octavo.packbits(torch.ones(3, dtype=torch.int32)), TypeError, "floating"),
        (lambda: octavo.packbits(torch.ones(3, dtype=torch.complex64)), TypeError, "floating"),
        (lambda: octavo.packbits(torch.ones(3).to_sparse()), TypeError, "expected a dense tensor"),
        (lambda: octavo.unpackbits(torch.ones(3).byte().to_sparse(), 8), TypeError, "expected a dense tensor"),
        (lambda: octavo.packbits([1.0, 2.0]), TypeError, "tensor must be of type Tensor, got list"),
        (lambda: octavo.packbits(torch.ones(3), 2.0), TypeError, "input_size must be of type int, got float"),
        (lambda: octavo.unpackbits(torch.zeros(2, dtype=torch.uint8), None), TypeError, "got NoneType"),
        (lambda: octavo.packbits(torch.ones(3), 4), ValueError, "from 0 to 3"),
        (lambda: octavo.packbits(torch.ones(3), -1), ValueError, "from 0 to 3"),
        (lambda: octavo.unpackbits(torch.ones(3), 3), TypeError, "uint8"),
        (lambda: octavo.unpackbits(torch.zeros(2, dtype=torch.uint8), 17), ValueError, "from 0 to 16"),
    ],
)
def test_errors_say_what_was_expected(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("args", [(torch.randn(100),), (torch.randn(3, 5).bfloat16(), 7), (torch.randn(0),)])
def test_opcheck(args):
    torch.library.opcheck(torch.ops.octavo.packbits.default, args)
    packed = octavo.packbits(*args)
    torch.library.opcheck(torch.ops.octavo.unpackbits, (packed, 8 * packed.numel()))


def test_compile_traces_them_with_dynamic_shapes():
    def signs(x):
        return octavo.unpackbits(octavo.packbits(x * 2), x.numel()).view_as(x)

    compiled = torch.compile(signs, backend="aot_eager", fullgraph=True, dynamic=True)
    for count in (5, 100, 1000):
        x = torch.randn(count)
        assert torch.equal(compiled(x), signs(x))
