# SPDX-License-Identifier: Apache-2.0
"""Tensors on the CPU beside tensors of the device: accepted and refused as beside CUDA's, in torch's words."""

from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F
from torchgen.gen import parse_native_yaml
from torchgen.model import DeviceCheckType, DispatchKey

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, sycl:0 and cpu!"


def there(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="sycl")


@pytest.mark.parametrize(
    "operation",
    [
        lambda: there(1, 2) + torch.ones(2),
        lambda: torch.ones(2) * there(1, 2),
        lambda: there(1, 2).add_(torch.ones(2)),
        lambda: torch.tensor(1.0).add_(there(1)[0]),
        lambda: torch.add(there(1, 2), 1, out=torch.empty(2)),
        lambda: torch.where(there(1, 0).bool(), torch.ones(2), there(1, 2)),
        lambda: F.mse_loss(there(1, 2), torch.ones(2)),
        lambda: there(1, 2).masked_fill_(torch.tensor([True, False]), 1.0),
        lambda: there(1, 2, 3).index_put_((there(0, 1).long(),), torch.ones(2)),
        lambda: there(1, 2, 3).__setitem__(there(0, 1).long(), torch.ones(2)),
        lambda: there(1, 2, 3).__setitem__(there(1, 1, 0).bool(), torch.ones(2)),
        lambda: torch.ones(3).__setitem__(torch.tensor([0, 1]), there(1, 2)),
    ],
)
def test_another_device_is_refused(operation) -> None:
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        operation()


@pytest.mark.parametrize(
    "operation",
    [
        lambda: torch.cat([there(1, 2), torch.ones(2)]),
        lambda: torch.stack([there(1)[0], torch.tensor(1.0)]),
        lambda: torch.mm(there(1, 2).view(1, 2), torch.ones(2, 1)),
        lambda: F.linear(there(1, 2).view(1, 2), torch.ones(2, 2)),
        lambda: torch.index_select(there(1, 2), 0, torch.tensor([0])),
        lambda: there(1, 2).gather(0, torch.tensor([0])),
        lambda: there(1, 2).scatter_(0, torch.tensor([0]), 1.0),
        lambda: F.embedding(torch.tensor([0]), there(1, 2).view(2, 1)),
        lambda: F.cross_entropy(there(1, 2).view(1, 2), torch.tensor([0])),
        lambda: F.layer_norm(there(1, 2), (2,), torch.ones(2)),
        lambda: torch.logaddexp(there(1, 2), torch.tensor(1.0)),
        lambda: torch.equal(there(1, 2), torch.ones(2)),
        lambda: torch.bucketize(there(1, 2), torch.tensor([0.0, 1.0])),
    ],
)
def test_another_device_is_refused_by_the_words_of_torchs_wrappers(operation) -> None:
    sentence = "Expected all tensors to be on the same device, but got .* different from other tensors on"
    with pytest.raises(RuntimeError, match=sentence):
        operation()


def test_indices_of_the_device_into_a_tensor_on_the_cpu() -> None:
    x, one, mask = torch.arange(3.0), there(1).long(), there(1, 0, 1).bool()
    for index in (one, mask, (mask,)):
        with pytest.raises(RuntimeError, match=r"indices should be either on cpu or on the same device.*\(cpu\)"):
            x[index]
    x[one] = torch.tensor([7.0])  # torch moves the indices here, and nowhere else
    x[mask] = 5.0
    assert x.tolist() == [5, 7, 5] and x.device.type == "cpu"
    assert x.index_put_((one,), torch.tensor([8.0])) is x and x.tolist() == [5, 8, 5]
    with pytest.raises(RuntimeError, match=TWO_DEVICES):
        x[mask] = there(1, 2)


def test_accumulated_values_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="expected device sycl:0 but got device cpu for value tensor"):
        there(1, 2).index_put_((there(0).long(),), torch.ones(1), accumulate=True)


def test_too_many_numbers_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="Trying to pass too many CPU scalars to non-CPU kernel!"):
        torch.addcmul(there(1, 2), torch.tensor(1.0), torch.tensor(2.0))


def test_numbers_on_the_cpu() -> None:
    x, number = there(1, 2, 3), torch.tensor(2.0)
    assert (x * number).tolist() == (number * x).tolist() == [2, 4, 6]
    assert torch.where(x > 1, number, number).tolist() == [2, 2, 2]
    assert torch.lerp(x, x * 2, number / 4).tolist() == [1.5, 3, 4.5]
    assert x.masked_fill(x > 2, number).tolist() == [1, 2, 2]
    assert torch.maximum(x, number).tolist() == [2, 2, 3]
    assert (x == number).tolist() == [False, True, False]
    assert x.clone().fill_(number).tolist() == [2, 2, 2]
    assert torch._foreach_mul([x], number)[0].tolist() == [2, 4, 6]
    assert x.add(number).device.type == "sycl"


def test_indices_and_values_on_the_cpu() -> None:
    x = there(1, 2, 3)
    assert x[torch.tensor([2, 0])].tolist() == [3, 1]
    assert x[torch.tensor([True, False, True])].tolist() == [1, 3]
    assert x[torch.tensor(1)].item() == 2
    x[torch.tensor([2, 0])] = there(30, 10)
    x[torch.tensor([1])] = torch.tensor(20.0)
    assert x.tolist() == [10, 20, 30]
    x[x > 10] = torch.tensor([7.0])  # one value for a mask
    assert x.tolist() == [10, 7, 7]
    x[1:] = torch.tensor([4.0, 5.0])  # a copy
    x[0] = torch.tensor(3.0)
    assert x.tolist() == [3, 4, 5]


def test_copies_between_devices() -> None:
    x, y = there(1, 2), torch.zeros(2)
    assert y.copy_(x).tolist() == x.copy_(y + 1).sub(1).tolist() == [1, 2]


def operators_of_tensors() -> list[tuple[str, int, bool]]:
    """Returns the operators that both CPU and CUDA have and that need only tensors, at least two: how they are called,
    how many tensors they need, and whether torch's wrapper for CUDA requires that they are on one device."""
    folder = files("torchgen") / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    functions = {str(f.func.name): f for f in parsed.native_functions}
    backends = [parsed.backend_indices[key] for key in (DispatchKey.CPU, DispatchKey.CUDA)]
    found = []
    for name, f in functions.items():
        holder = functions[str(f.structured_delegate)] if f.structured_delegate else f
        needed = [a.type for a in f.func.arguments.flat_all if a.default is None]
        is_plain = not f.func.arguments.out and not f.func.name.name.inplace and not name.startswith("_nested")
        takes_tensors = len(needed) >= 2 and all(str(each) == "Tensor" for each in needed)
        if is_plain and takes_tensors and all(backend.has_kernel(holder) for backend in backends):
            found.append((name, len(needed), f.device_check != DeviceCheckType.NoCheck))
    return found


def test_every_operator_of_tensors_takes_numbers_where_torchs_own_wrapper_does() -> None:
    operators, wrong = operators_of_tensors(), []
    assert len(operators) > 100 and 30 < sum(is_checked for _, _, is_checked in operators) < len(operators) - 30
    for name, count, is_checked in operators:
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        try:
            operator(*[there(1, 2)] * (count - 1), torch.tensor(1.0))
            is_refused = False
        except (RuntimeError, ValueError, IndexError) as error:
            # dtypes and shapes may be wrong, but devices are checked first
            is_refused = "Expected all tensors to be on the same device" in str(error)
        if is_refused != is_checked:
            wrong.append((name, is_checked))
    assert not wrong
