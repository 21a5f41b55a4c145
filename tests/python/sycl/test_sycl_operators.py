# SPDX-License-Identifier: Apache-2.0
"""Operators by the CPU's kernels on the same memory: the CPU's bits, views that stay views, what is refused."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import octavo.sycl

OPERATORS = {
    "add": lambda x: x + x,
    "matmul": lambda x: x @ x.t(),
    "out": lambda x: torch.mm(x, x.t(), out=torch.empty(0, device=x.device)),
    "svd": lambda x: torch.linalg.svd(x)[1],
    "sort": lambda x: torch.sort(x, dim=0),
    "topk": lambda x: torch.topk(x, 2),
    "split": lambda x: (
        torch.cat(list(x.split([1, 3])) + list(x.unbind())[0:1], dim=0) if x.dim() > 2 else x.split([1, 3])
    ),
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.5)),
    "masks": lambda x: x[x > 0],
    "cpu indices": lambda x: x[torch.tensor([2, 0])],
    "put": lambda x: x.clone().index_put_((torch.tensor([1], device=x.device),), x.new_ones(5)),
    "scatter": lambda x: x.clone().scatter_add_(0, torch.zeros(1, 5, dtype=torch.long, device=x.device), x[:1]),
    "cumsum": lambda x: x.cumsum(1),
    "foreach": lambda x: torch._foreach_add([x, x * 2], [x, x], alpha=3),
    "complex": lambda x: torch.view_as_real(
        (torch.complex(x, x).conj() @ torch.complex(x, -x).mH).conj().resolve_conj()
    ),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 4, 5)] * 3, is_causal=True),
    "unfold": lambda x: x.unfold(1, 2, 1) * 2,
    "int8": lambda x: (x * 50).to(torch.int8),
    "bf16": lambda x: x.bfloat16() * 3,
    "tril_indices": lambda x: torch.tril_indices(3, 3, device=x.device),
    "arange": lambda x: torch.arange(7, device=x.device) * 2,
    "scalar": lambda x: x * torch.tensor(3.0),
}


def on_host(value):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), value)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_bits_of_the_cpu(name: str) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    expected, got = OPERATORS[name](x), OPERATORS[name](x.to("sycl"))
    leaves = torch.utils._pytree.tree_leaves(got)
    assert all(leaf.device == torch.device("sycl", 0) for leaf in leaves)
    for e, g in zip(
        torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(on_host(got)), strict=True
    ):
        assert torch.equal(e, g) and e.stride() == g.stride()


def test_views_share_memory() -> None:
    x = torch.zeros(4, 6, device="sycl")
    for view in (x.t(), x[1:], x.view(24), x.diagonal(), x.unfold(1, 2, 2), x.split(2)[1], x.detach(), x.select(0, 1)):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        view.add_(1)
    reference = torch.zeros(4, 6)
    for view in (
        reference.t(),
        reference[1:],
        reference.view(24),
        reference.diagonal(),
        reference.unfold(1, 2, 2),
        reference.split(2)[1],
        reference.detach(),
        reference.select(0, 1),
    ):
        view.add_(1)
    assert torch.equal(x.cpu(), reference)


def test_out_grows_and_resize_and_set() -> None:
    x, out = torch.arange(6.0, device="sycl"), torch.empty(0, device="sycl")
    assert torch.add(x, 1, out=out) is out and out.tolist() == [1, 2, 3, 4, 5, 6]
    out.resize_(8)
    assert out[:6].tolist() == [1, 2, 3, 4, 5, 6] and out.device.type == "sycl"
    view = torch.empty(0, device="sycl").set_(x.untyped_storage(), 1, (2,), (2,))
    assert view.tolist() == [1, 3]
    view.zero_()
    assert x.tolist() == [0, 0, 2, 0, 4, 5]
    assert view.set_().numel() == 0


def test_copy_on_write_is_undone_before_a_write() -> None:
    x = torch.ones(4, device="sycl")
    clone = torch._lazy_clone(x)
    clone.add_(1)
    assert x.tolist() == [1] * 4 and clone.tolist() == [2] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_in_all_directions(dtype: torch.dtype, non_blocking: bool) -> None:
    source = torch.arange(24).view(4, 6).remainder(5).to(dtype)
    pinned = source.pin_memory()
    for host in (source, pinned, source.t(), pinned[1:, ::2], source.double()):
        there = torch.zeros(host.shape, dtype=dtype, device="sycl")
        there.copy_(host, non_blocking=non_blocking)
        again = torch.empty_like(there).copy_(there, non_blocking=non_blocking)
        back = torch.empty(host.shape, dtype=host.dtype).pin_memory()
        back.copy_(again, non_blocking=non_blocking)
        torch.sycl.synchronize()
        assert torch.equal(back, host) and torch.equal(again.to(torch.float64).cpu(), host.double())


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: x.add_(y),
        lambda x, y: y.add_(x[0]),
        lambda x, y: torch.add(x, 1, out=y),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: F.linear(x.view(1, 3), y.view(1, 3)),
        lambda x, y: torch._foreach_add([x], [y]),
    ],
)
def test_mixed_devices_are_refused_and_change_nothing(operation) -> None:
    x, y = torch.ones(3, device="sycl"), torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        operation(x, y)
    assert x.tolist() == y.tolist() == [1, 1, 1]


def test_layouts_without_a_way_are_refused() -> None:
    with pytest.raises(RuntimeError, match="pin_memory works on CPU tensors; this one is on sycl:0"):
        torch.empty(3, device="sycl", pin_memory=True)
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        torch.ones(3, device="sycl").numpy()


RANDOM = {
    "rand": lambda d: torch.rand(100, device=d),
    "randn": lambda d: torch.randn(100, device=d),
    "randint": lambda d: torch.randint(0, 9, (100,), device=d),
    "randperm": lambda d: torch.randperm(100, device=d),
    "rand_like": lambda d: torch.rand_like(torch.ones(100, device=d)),
    "normal": lambda d: torch.normal(torch.zeros(100, device=d), 2.0),
    "bernoulli": lambda d: torch.full((100,), 0.3, device=d).bernoulli(),
    "multinomial": lambda d: torch.multinomial(torch.ones(100, device=d), 10),
    "poisson": lambda d: torch.poisson(torch.ones(100, device=d)),
    "exponential": lambda d: torch.ones(100, device=d).exponential_(),
    "rrelu": lambda d: F.rrelu(-torch.ones(100, device=d), training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_seed_gives_the_numbers_of_the_cpu(name: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    got = RANDOM[name]("sycl")
    assert torch.equal(torch.get_rng_state(), state), "it drew from the CPU's generator"
    assert torch.equal(got.cpu(), RANDOM[name]("cpu"))


def test_dropout_draws_from_the_device() -> None:
    state, x = torch.get_rng_state(), torch.ones(10_000, device="sycl")
    torch.sycl.manual_seed(1)
    first = F.dropout(x, 0.3)
    torch.sycl.manual_seed(1)
    assert torch.equal(first.cpu(), F.dropout(x, 0.3).cpu())
    assert torch.equal(torch.get_rng_state(), state)
    assert abs((first > 0).float().mean().item() - 0.7) < 0.03
    assert first.max().item() == pytest.approx(1 / 0.7)


def test_generators_and_their_states() -> None:
    state = torch.sycl.get_rng_state()
    first = torch.rand(3, device="sycl")
    torch.sycl.set_rng_state(state)
    assert torch.equal(first.cpu(), torch.rand(3, device="sycl").cpu())
    torch.sycl.set_rng_state_all(torch.sycl.get_rng_state_all())
    own = torch.Generator("sycl").manual_seed(4)
    assert torch.equal(
        torch.rand(3, device="sycl", generator=own).cpu(), torch.rand(3, generator=torch.Generator().manual_seed(4))
    )
    own.manual_seed(5)
    torch.rand(3, device="sycl", generator=own)
    copies = copy.deepcopy(own), pickle.loads(pickle.dumps(own))
    drawn = [torch.rand(3, device="sycl", generator=generator).tolist() for generator in (own, *copies)]
    assert drawn[0] == drawn[1] == drawn[2]
    with pytest.raises(RuntimeError, match=r"\[device\.sycl\] expected an offset of 0, got 4"):
        own.set_offset(4)
    with pytest.raises(RuntimeError, match="expected a generator of sycl:0, got one of cpu"):
        torch.rand(3, device="sycl", generator=torch.Generator())
    for draw in (torch.randn, torch.rand, torch.randperm):
        with pytest.raises(RuntimeError, match="expected a generator of cpu, got one of sycl:0"):
            draw(3, generator=own)
    with pytest.raises(RuntimeError, match="expected a generator of cpu, got one of sycl:0"):
        torch.zeros(3).normal_(generator=own)
    with torch.random.fork_rng(device_type="sycl"):
        inside = torch.rand(3, device="sycl")
    assert torch.equal(inside.cpu(), torch.rand(3, device="sycl").cpu())
    torch.sycl.manual_seed_all(2**64 - 1)
    assert torch.sycl.initial_seed() == 2**64 - 1


@pytest.mark.parametrize("function", ["manual_seed", "manual_seed_all"])
def test_seeds_are_checked_alike(function: str) -> None:
    set_seed = getattr(torch.sycl, function)
    for seed in (0, np.int64(3), 2**64 - 1, -1, -(2**63)):
        set_seed(seed)
        assert torch.sycl.initial_seed() == int(seed) % 2**64
    for seed in (torch.tensor(5), "3", True, 1.5, None):
        with pytest.raises(TypeError, match=rf"^\[sycl\.{function}\] expected an int .*got {type(seed).__name__}$"):
            set_seed(seed)
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=rf"^\[sycl\.{function}\] expected a seed from .*, got {seed}$"):
            set_seed(seed)
    assert torch.sycl.initial_seed() == 2**63  # as before


def test_a_state_is_not_taken_from_the_middle_of_a_draw() -> None:
    """Another thread draws from the generator: the state must be that before or after a whole draw."""
    generator, draws = torch.Generator("sycl").manual_seed(7), 40
    x = torch.empty(1 << 18, device="sycl")

    def draw() -> None:
        for _ in range(draws):
            x.uniform_(generator=generator)

    states, thread = [], threading.Thread(target=draw)
    thread.start()
    while thread.is_alive():
        states.append(generator.get_state())
    thread.join()
    generator.manual_seed(7)
    whole = [generator.get_state()]
    for _ in range(draws):
        x.uniform_(generator=generator)
        whole.append(generator.get_state())
    known = {bytes(state.numpy()) for state in whole}
    assert len(known) == draws + 1 and len(states) > 10
    assert all(bytes(state.numpy()) in known for state in states)


def test_save_load_and_deepcopy() -> None:
    x = torch.randn(4, 5, device="sycl")
    file = io.BytesIO()
    torch.save({"x": x, "row": x[1:]}, file)
    for where, device in ((None, "sycl"), ("cpu", "cpu"), ("sycl:0", "sycl")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded["x"].device.type == device and torch.equal(loaded["x"].cpu(), x.cpu())
        assert loaded["row"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    twin = copy.deepcopy(x)
    assert twin.data_ptr() != x.data_ptr() and twin.device == x.device and torch.equal(twin.cpu(), x.cpu())
    assert nn.Linear(2, 2).sycl().weight.is_sycl


def test_octavos_kernels() -> None:
    x = torch.randn(1001, device="sycl")
    packed = octavo.packbits(x)
    assert packed.device.type == "sycl" and torch.equal(packed.cpu(), octavo.packbits(x.cpu()))
    assert torch.equal(octavo.unpackbits(packed, 1001).cpu(), octavo.unpackbits(packed.cpu(), 1001))


def test_two_results_in_one_empty_tensor() -> None:
    out = torch.empty(0, device="sycl")
    torch.aminmax(torch.tensor([1.0, 5.0], device="sycl"), out=(out, out))
    assert out.untyped_storage().nbytes() >= 4 and out.item() in (1, 5)


@pytest.mark.parametrize("device", ["cpu", "sycl"])
def test_a_copy_to_a_tensor_without_elements_has_to_fit(device: str) -> None:
    for shape, source in (((0,), torch.ones(5)), ((0, 3), torch.ones(2, 3, device="sycl"))):
        with pytest.raises(RuntimeError, match="must match"):
            torch.empty(shape, device=device).copy_(source.to(device))
    assert torch.empty(0, 3, device=device).copy_(torch.ones(3)).shape == (0, 3)


def test_a_sparse_tensor_without_elements_gets_some() -> None:
    """This is done in place, as by an optimizer's zero_grad(set_to_none=False) and the next backward."""
    some = torch.sparse_coo_tensor([[1, 2]], [1.0, 2.0], (5,), device="sycl", check_invariants=True)
    for put in (torch.Tensor.add_, torch.Tensor.copy_, lambda x, y: torch.add(x, y, out=x)):
        x = some.clone().zero_()
        put(x, some)
        assert x._values().untyped_storage().nbytes() >= 8
        assert x.to_dense().tolist() == [0, 1, 2, 0, 0]


def test_sparse_tensors() -> None:
    eye = torch.eye(3, device="sycl").to_sparse()
    assert eye.device.type == "sycl" and torch.equal(eye.to_dense().cpu(), torch.eye(3))
    assert torch.sparse.mm(eye, torch.full((3, 2), 2.0, device="sycl")).tolist() == [[2, 2]] * 3
    again = eye.cpu().to("sycl")
    eye.mul_(2).add_(again)
    assert eye.coalesce().values().tolist() == [3, 3, 3]
    dense = torch.ones(3, 3, device="sycl").add_(again)
    assert dense.trace().item() == 6 and dense.sum().item() == 12
    with pytest.raises(RuntimeError, match="operators on sycl take strided and sparse COO tensors"):
        dense.to_sparse_csr()
