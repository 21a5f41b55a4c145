# SPDX-License-Identifier: Apache-2.0
"""The usage examples of the packbits document."""

import pytest
import torch
from torch import nn

import octavo


def model_with_gradients(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Linear(33, 7)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def test_sign_sgd_compressor():
    gradient = torch.randn(5, 13)
    compressor = octavo.SignSGDCompressor(rank=0)
    packed, shape = compressor.compress(gradient)
    assert packed.numel() == 9
    assert torch.equal(compressor.decompress(packed, shape), torch.sign(gradient))


def test_the_accumulator_takes_the_majority_over_any_number_of_passes():
    model = model_with_gradients(0)
    accumulator = octavo.CompressedGradientAccumulator(model, rank=0)
    for passes in (1, 2, 3, 6, 7):
        votes = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for seed in range(passes):
            other = model_with_gradients(seed)
            for (name, parameter), source in zip(model.named_parameters(), other.parameters(), strict=True):
                parameter.grad = source.grad
                votes[name] += torch.sign(source.grad)
            accumulator.accumulate(model)
        accumulator.get_accumulated(model)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, torch.sign(votes[name])), passes
        accumulator.get_accumulated(model, mean=True)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, votes[name] / passes), passes
        assert len(accumulator.accumulated["weight"]) <= passes.bit_length()
        accumulator.zero()


def test_a_parameter_that_never_voted_keeps_no_gradient():
    model = nn.Linear(3, 3)
    accumulator = octavo.CompressedGradientAccumulator(model, rank=0)
    accumulator.accumulate(model)
    accumulator.get_accumulated(model)
    assert model.weight.grad is None


def test_signs_that_are_all_negative_are_a_majority():
    model = nn.Linear(3, 3)
    accumulator = octavo.CompressedGradientAccumulator(model, rank=0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -2.0)
    accumulator.accumulate(model)
    for mean in (False, True):
        accumulator.get_accumulated(model, mean=mean)
        assert all(torch.equal(p.grad, torch.full_like(p, -1.0)) for p in model.parameters())


def test_a_parameter_that_is_unfrozen_later_votes_too():
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    accumulator = octavo.CompressedGradientAccumulator(model, rank=0)
    model.weight.grad = torch.full_like(model.weight, 2.0)
    accumulator.accumulate(model)
    accumulator.get_accumulated(model)
    assert torch.equal(model.weight.grad, torch.ones(3, 3))
    assert model.bias.grad is None


def test_error_feedback_sends_everything_in_the_end():
    model = model_with_gradients(0)
    gradients = [torch.rand_like(p) - 0.5 for p in model.parameters()]
    compressor = octavo.ErrorFeedbackSignSGD(model, rank=0)
    sums = [torch.zeros_like(g) for g in gradients]
    for _ in range(500):
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        compressor.compress_and_communicate(model)
        for total, parameter in zip(sums, model.parameters(), strict=True):
            total += parameter.grad
    for total, gradient in zip(sums, gradients, strict=True):
        assert torch.allclose(total / 500, gradient, atol=0.15)


def average(rank: int) -> torch.Tensor:
    model = nn.Linear(33, 7)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1.0 + rank)
    octavo.ErrorFeedbackSignSGD(model, rank).compress_and_communicate(model)
    return model.weight.grad


def test_error_feedback_averages_over_ranks(two_ranks):
    for result in two_ranks.run(average):
        assert torch.allclose(result, torch.full((7, 33), 1.5))


def error_after_one_bad_step(rank: int, ranks: int) -> tuple[bool, bool, torch.Tensor]:
    """Rank `ranks` - 1 has a NaN in the second of three steps."""
    model = nn.Linear(33, 7)
    compressor = octavo.ErrorFeedbackSignSGD(model, rank)
    finite, errors = [], []
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.arange(1.0, parameter.numel() + 1).view_as(parameter)
        if step == 1 and rank == ranks - 1:
            model.weight.grad[0, 0] = float("nan")
        compressor.compress_and_communicate(model)
        finite.append(bool(model.weight.grad.isfinite().all()))
        errors.append(compressor.error_buffer["weight"])
    return torch.equal(errors[0], errors[1]), finite == [True, False, True], errors[2]


def test_a_bad_step_leaves_the_errors_as_they_were():
    assert error_after_one_bad_step(0, 1)[:2] == (True, True)


def test_a_bad_step_of_one_rank_leaves_the_errors_of_all_as_they_were(two_ranks):
    for unchanged, finite, error in two_ranks.run(error_after_one_bad_step, 2):
        assert unchanged and finite and error.isfinite().all()


def gradients_where_one_rank_has_none(rank: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    model = nn.Sequential(nn.Linear(33, 7), nn.Linear(7, 2))
    if rank == 0:
        model[0].weight.grad = torch.ones_like(model[0].weight)
    model[0].bias.grad = torch.ones_like(model[0].bias)
    octavo.ErrorFeedbackSignSGD(model, rank).compress_and_communicate(model)
    return model[0].weight.grad, model[0].bias.grad, model[1].weight.grad is None


def test_a_gradient_that_one_rank_lacks_is_zero_there(two_ranks):
    for weight, bias, unused in two_ranks.run(gradients_where_one_rank_has_none):
        assert torch.equal(weight, torch.full((7, 33), 0.5))
        assert torch.equal(bias, torch.ones(7))
        assert unused


def test_error_feedback_takes_a_parameter_that_is_unfrozen_later():
    model = nn.Linear(3, 3)
    model.weight.requires_grad_(False)
    compressor = octavo.ErrorFeedbackSignSGD(model)
    model.weight.grad = torch.full_like(model.weight, 2.0)
    compressor.compress_and_communicate(model)
    assert torch.equal(model.weight.grad, torch.full((3, 3), 2.0))


def test_error_feedback_names_the_parameter_of_a_sparse_gradient():
    model = nn.Embedding(3, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="the gradient of weight is sparse"):
        octavo.ErrorFeedbackSignSGD(model).compress_and_communicate(model)
