# SPDX-License-Identifier: Apache-2.0
"""How DDP lays out gradients in buckets, and in which order it hands them over."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo


class TwoMatrices(nn.Module):
    """Complex numbers, of which each parameter has a different count."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))
        self.second = nn.Parameter(torch.randn(32, 64, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.first @ x).abs().square().sum() + (self.second @ x).abs().square().sum()


def complex_gradients(rank: int, plan: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = TwoMatrices()
    ddp = DistributedDataParallel(model)
    handle = octavo.compress(ddp, plan)
    ddp(torch.ones(64, 1, dtype=torch.complex64) * (1 + rank)).backward()
    assert handle.stats()["dense_bytes"] == 8 * 96 * 64
    return [(weight.grad, weight.detach()) for weight in model.parameters()]


@pytest.mark.parametrize("plan", ["dense", "int4+ef"])
def test_complex_gradients_are_averaged_whole(two_ranks, plan):
    for (first, weight), (second, _) in zip(*two_ranks.run(complex_gradients, plan), strict=True):
        assert torch.equal(first, second)
        # the gradient of |weight @ ones * k|^2, averaged over k = 1, 2
        rows = 2 * weight.sum(1, keepdim=True) * (1 + 4) / 2
        torch.testing.assert_close(first, rows.expand_as(first), rtol=0.1, atol=0.2 * rows.abs().max().item())


def train_with_options_of_ddp(rank: int, plan: str, options: dict) -> torch.Tensor:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    layers[2].double()  # a bucket has parameters of one dtype
    layers[2].register_forward_pre_hook(lambda _, inputs: inputs[0].double())
    model = DistributedDataParallel(layers, **options)
    octavo.compress(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        dict(static_graph=True),
        dict(static_graph=True, gradient_as_bucket_view=True),
        dict(static_graph=True, find_unused_parameters=True, bucket_cap_mb=0.001),
    ],
)
def test_a_static_graph_trains_as_any_other(two_ranks, options):
    ranks, plain = (
        two_ranks.run(train_with_options_of_ddp, "int8+ef", options),
        two_ranks.run(train_with_options_of_ddp, "int8+ef", {}),
    )
    assert torch.equal(*ranks)
    torch.testing.assert_close(ranks[0], plain[0], rtol=0, atol=1e-3)


def train_uneven_batches(rank: int) -> tuple[torch.Tensor, int]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))
    handle = octavo.compress(model, "int4+ef")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(3 + 3 * rank):
            optimizer.zero_grad()
            model(torch.full((4, 64), step + rank + 1.0)).square().mean().backward()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), handle.stats()["steps"]


def test_a_rank_without_data_joins_the_steps_of_the_others(two_ranks):
    (first, first_steps), (second, second_steps) = two_ranks.run(train_uneven_batches)
    assert first_steps == second_steps == 6 and torch.equal(first, second)


def compress_without_unused_buckets(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4), find_unused_parameters=True)
    model.skip_all_reduce_unused_params = True  # an option from torch 2.13 on
    with pytest.raises(ValueError, match="skip_all_reduce_unused_params"):
        octavo.compress(model, "int4+ef")


def test_buckets_that_ddp_leaves_out_are_refused(two_ranks):
    two_ranks.run(compress_without_unused_buckets)


def compress_what_was_unfrozen_after_wrapping(rank: int) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[0].requires_grad_(False)
    model = DistributedDataParallel(layers)
    layers[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"a parameter of the sizes \[4, 4\] was frozen or not there when the model"):
        octavo.compress(model, "int4+ef")


def test_parameters_that_ddp_does_not_average_are_refused(two_ranks):
    two_ranks.run(compress_what_was_unfrozen_after_wrapping)
