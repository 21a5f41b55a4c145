# SPDX-License-Identifier: Apache-2.0
"""Parameter groups: options that no optimizer here has, and groups that a program sorts or removes."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from fused_runs import MAKERS, give_gradients, go_on, parameters_of, tensors_of
from torch import nn

from octavo.optim import AdamW, AdamW8bit

# What constructors refuse, and what they accept, because it means no more than the option's absence.
UNSUPPORTED = {
    "maximize": (True, (False, None, 0)),
    "amsgrad": (True, (False, None, 0)),
    "capturable": (True, (False, None)),
    "differentiable": (True, (False, None)),
    "max_unorm": (0.5, (0.0, 0, None)),
    "skip_zeros": (True, (False, None)),
    "percentile_clipping": (5, (100, None)),
    "block_wise": (False, (True, None)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_group_refuses_what_the_constructor_refuses(name):
    for option, (value, _) in UNSUPPORTED.items():
        with pytest.raises(ValueError, match=rf"^\[optim\.\w+\] {option}={value} of \w+ is not supported: leave it"):
            MAKERS[name]([{"params": parameters_of(), option: value}])
        optimizer = MAKERS[name](parameters_of())
        with pytest.raises(ValueError, match=rf"{option}={value} of"):
            optimizer.add_param_group({"params": parameters_of(), option: value})
        assert len(optimizer.param_groups) == 1
        go_on(optimizer, range(1))
        optimizer.param_groups[0][option] = value
        give_gradients(optimizer.param_groups[0]["params"], 1)
        before = [tensor.clone() for tensor in tensors_of(optimizer) if isinstance(tensor, torch.Tensor)]
        with pytest.raises(ValueError, match=rf"{option}={value} of"):
            optimizer.step()
        after = [tensor for tensor in tensors_of(optimizer) if isinstance(tensor, torch.Tensor)]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("name", MAKERS)
def test_a_group_takes_what_means_nothing(name):
    optimizer = MAKERS[name](parameters_of())
    go_on(optimizer, range(3))
    for number in range(3):
        options = {option: values[number % len(values)] for option, (_, values) in UNSUPPORTED.items()}
        other = MAKERS[name]([{"params": parameters_of(), **options, "foreach": True, "fused": False}])
        go_on(other, range(3))
        other.load_state_dict(other.state_dict())
        pairs = zip(optimizer.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def changed(how: str, optimizer: torch.optim.Optimizer) -> None:
    groups = optimizer.param_groups
    if how == "reversed":
        groups.reverse()
    elif how == "removed":
        groups.pop(0)
    elif how == "a parameter moved":
        groups[1]["params"].append(groups[0]["params"].pop(0))
    elif how == "loaded":
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("how", ["reversed", "removed", "a parameter moved", "loaded"])
def test_a_step_in_backward_is_that_of_the_group_that_has_the_parameter(how):
    ends = []
    for in_backward in (False, True):
        parameters = parameters_of()
        optimizer = AdamW([{"params": [p], "lr": 10.0**-n} for n, p in enumerate(parameters, 1)])
        if in_backward:
            optimizer.step_in_backward()
        for step in range(4):
            if step == 2:
                changed(how, optimizer)
            sum((p * p * (step + 1)).sum() for p in parameters).backward()
            optimizer.step()
            stepped = {p for group in optimizer.param_groups for p in group["params"]}
            if in_backward:
                assert all((p.grad is None) == (p in stepped) for p in parameters)
            optimizer.zero_grad()
        ends.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_seat_that_has_changed_is_searched_for_once():
    class Places(list):
        searches = 0

        def __iter__(self):
            self.searches += 1
            return super().__iter__()

    parameters = [nn.Parameter(torch.ones(3)) for _ in range(20)]
    optimizer = AdamW([{"params": [parameters[0]]}, {"params": parameters[1:]}])
    optimizer.step_in_backward()
    optimizer.param_groups.reverse()
    optimizer.param_groups[0]["params"] = places = Places(parameters[1:])
    counts = []
    for _ in range(2):
        places.searches = 0
        sum(parameter.sum() for parameter in parameters).backward()
        counts.append(places.searches)
    assert counts[0] > 0 and counts[1] == 0


def test_a_parameter_that_was_removed_is_not_kept():
    parameters = [nn.Parameter(torch.ones(50, dtype=torch.bfloat16)) for _ in range(3)]
    optimizer = AdamW8bit([{"params": [p]} for p in parameters], bf16_rounding="stochastic")
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()
    removed = weakref.ref(parameters[0])
    optimizer.param_groups.pop(0)
    del optimizer.state[parameters.pop(0)], parameter
    gc.collect()
    assert removed() is None

    def numbers():
        return optimizer._rounding_numbers.numbers(optimizer.param_groups, parameters, [1] * len(parameters))

    assert len(set(numbers())) == 2
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(50, dtype=torch.bfloat16))]})
    parameters.append(optimizer.param_groups[-1]["params"][0])
    parameters[-1].grad = torch.ones_like(parameters[-1])
    optimizer.step()
    assert len(set(numbers())) == 3


@pytest.mark.parametrize("name", MAKERS)
def test_the_defaults_of_torch_change_no_step(name):
    """Whatever torch's default device and dtype are, numbers are kept on the CPU, and in their own dtype."""
    ends = []
    for device, dtype in (("cpu", torch.float32), ("meta", torch.float64)):
        optimizer = MAKERS[name](parameters_of())
        parameters = optimizer.param_groups[0]["params"]
        for step in range(4):
            give_gradients(parameters, step)
            torch.set_default_dtype(dtype)
            try:
                with torch.device(device):
                    if hasattr(optimizer, "clip_grad_norm_"):
                        optimizer.clip_grad_norm_(1.0)
                    optimizer.step()
                    optimizer.load_state_dict(copy.deepcopy(optimizer).state_dict())
            finally:
                torch.set_default_dtype(torch.float32)
        ends.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
