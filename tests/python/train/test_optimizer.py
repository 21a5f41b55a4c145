# SPDX-License-Identifier: Apache-2.0
"""The optimizers of `octavo train`: each one obeys the options and exempts norms and biases from weight decay."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.train.config import TrainConfig
from octavo.train.optimizer import build_optimizer
from octavo.train.optimizer_kinds import FUSED, KINDS, OPTIMIZERS
from octavo.train.schedule import set_learning_rate

pytestmark = pytest.mark.timeout(30)


def build_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, attention_bias=True, **shape))


def build(optimizer: str, model: LlamaForCausalLM, **options: float):
    return build_optimizer(TrainConfig(optimizer=optimizer, steps=10, **options), model)


def one_step(optimizer: str, model: LlamaForCausalLM, gradient: float, **options: float) -> None:
    built = build(optimizer, model, **options)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    built.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_spares_what_has_fewer_than_two_dimensions(optimizer: str) -> None:
    model = build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    one_step(optimizer, model, gradient=0.0, lr=0.1, weight_decay=0.5)
    dimensions = {parameter.ndim for parameter in model.parameters()}
    assert dimensions == {1, 2}
    for name, parameter in model.named_parameters():
        coefficient = 1 / 0.5 if optimizer == "onebit-lamb" else 1.0  # the parameter's norm over that of its decay
        expected = 2.0 if parameter.ndim < 2 else 2.0 * (1 - 0.1 * 0.5 * coefficient)
        torch.testing.assert_close(parameter.data, torch.full_like(parameter, expected), msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_beta_and_the_rate_change_the_third_step(optimizer: str) -> None:
    ends = []
    for options in ({}, dict(beta1=0.2), *([dict(beta2=0.5)] if KINDS[optimizer].beta2 else [])):
        model = build_model()
        built = build(optimizer, model, **options)
        for step, scale in enumerate((1.0, -0.3, 0.1), start=1):
            set_learning_rate(built, 0.01 * step)
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
            built.step()
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert not any(torch.equal(ends[0], end) for end in ends[1:])


def test_muon_has_the_hidden_matrices_and_adamw_the_rest() -> None:
    model = build_model()
    built = build("muon", model, beta1=0.9)
    assert built.param_groups[0]["momentum"] == 0.9
    muon = {id(parameter) for parameter in built.param_groups[0]["params"]}
    for name, parameter in model.named_parameters():
        hidden = ".layers." in name and name.endswith("proj.weight")
        assert (id(parameter) in muon) == hidden, name
    everything = [id(parameter) for group in built.param_groups for parameter in group["params"]]
    assert sorted(everything) == sorted(id(parameter) for parameter in model.parameters())


def test_the_adamw_beside_muon_may_have_a_rate_of_its_own() -> None:
    for adamw_lr, share in ((None, 1.0), (6e-3, 3.0)):
        built = build("muon", build_model(), lr=2e-3, adamw_lr=adamw_lr)
        rates = [group["lr"] for group in built.param_groups]
        assert rates == pytest.approx([2e-3, 2e-3 * share, 2e-3 * share])
        set_learning_rate(built, 1e-3)
        resumed = build("muon", build_model(), lr=2e-3, adamw_lr=adamw_lr)
        resumed.load_state_dict(built.state_dict())
        set_learning_rate(resumed, 1e-4)
        assert [group["lr"] for group in resumed.param_groups] == pytest.approx([1e-4, 1e-4 * share, 1e-4 * share])


def test_muon_refuses_the_state_of_another_optimizer() -> None:
    model = build_model()
    with pytest.raises(ValueError, match=r"^\[train\.optimizer\] the saved state is not that of muon"):
        build("muon", model).load_state_dict(build("adamw", model).state_dict())


@pytest.mark.parametrize("optimizer", FUSED)
def test_clipping_scales_what_the_step_reads_and_leaves_the_gradient(optimizer: str) -> None:
    models, norm = [build_model(), build_model()], 0.0
    for model, scale in zip(models, (1.0, 0.5), strict=True):
        built = build(optimizer, model)
        for step in range(2):  # the second gradient decides how much of the first has been clipped
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator) * (1.0 if step else scale)
            if step == 0 and scale == 1.0:
                norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
                before = [parameter.grad.clone() for parameter in model.parameters()]
                assert built.clip_grad_norm_(norm / 2).item() == pytest.approx(norm, rel=1e-5)
                assert all(p.grad.equal(old) for p, old in zip(model.parameters(), before, strict=True))
            built.step()
    for mine, expected in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", FUSED)
def test_the_class_is_that_of_the_name(optimizer: str) -> None:
    built = build(optimizer, build_model())
    kebab = "".join("-" + c.lower() if c.isupper() else c for c in type(built).__name__).lstrip("-")
    # `lion` is DistributedLion
    assert optimizer.replace("lion32bit", "lion") == kebab.replace("adam-w", "adamw")
    assert built.param_groups[0]["is_paged"] == ("paged" in optimizer)
    assert built.param_groups[0]["optim_bits"] == (8 if "8bit" in optimizer else 4 if "4bit" in optimizer else 32)
