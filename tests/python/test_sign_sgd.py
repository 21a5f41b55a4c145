# SPDX-License-Identifier: Apache-2.0
"""The usage examples of the packbits document."""

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
