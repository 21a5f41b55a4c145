# SPDX-License-Identifier: Apache-2.0
"""Training on sycl gives the bits of the CPU: layers, optimizers, autocast, compiled graphs, a LLaMA."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import octavo.sycl  # noqa: F401

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), (5, 8)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (2, 3, 8, 8),
    ),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, bias=False), (2, 3, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
}


def pair(make) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model).to("sycl")


def same(a: nn.Module, b: nn.Module) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q.cpu()) and (p.grad is None or torch.equal(p.grad, q.grad.cpu()))


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str) -> None:
    make, shape = MODELS[name]
    here, there = pair(make)
    x = torch.randn(shape)
    inputs = x.clone().requires_grad_(), x.to("sycl").requires_grad_()
    for model, batch in zip((here, there), inputs, strict=True):
        model(batch).square().sum().backward()
    same(here, there)
    assert torch.equal(inputs[0].grad, inputs[1].grad.cpu())


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_optimizers(name: str, options: dict) -> None:
    here, there = pair(MODELS["mlp"][0])
    optimizers = [getattr(torch.optim, name)(m.parameters(), lr=0.01, **options) for m in (here, there)]
    for step in range(4):
        x = torch.randn(5, 8)
        for model, optimizer, batch in zip((here, there), optimizers, (x, x.to("sycl")), strict=True):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
        if step == 1:
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    same(here, there)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_scaler(dtype: torch.dtype) -> None:
    model = nn.Linear(8, 8).to("sycl")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("sycl")
    before = model.weight.detach().clone()
    with torch.autocast("sycl", dtype):
        y = model(torch.randn(2, 8, device="sycl"))
        assert y.dtype == dtype and torch.softmax(y, -1).dtype == torch.float32
        loss = y.float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight) and model.weight.dtype == torch.float32
    model.weight.grad.fill_(float("inf"))
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model.weight) and scaler.get_scale() < 65536


def test_autocast_computes_a_binary_cross_entropy_in_float32() -> None:
    values, target = torch.rand(8).bfloat16(), torch.rand(8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("sycl", torch.bfloat16):
        here = nn.functional.binary_cross_entropy(values, target)
        there = nn.functional.binary_cross_entropy(values.to("sycl"), target.to("sycl"))
    assert here.dtype == there.dtype == torch.float32 and torch.equal(here, there.cpu())


def test_llama_trains_to_the_same_bits() -> None:
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)
    here = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2))
    there = copy.deepcopy(here).to("sycl")
    losses = {}
    for model, device in ((here, "cpu"), (there, "sycl")):
        optimizer, losses[device] = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            tokens = torch.randint(0, 97, (4, 32), generator=generator).to(device)
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[device].append(loss.item())
    assert losses["cpu"] == losses["sycl"]
    same(here, there)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("sycl")
    compiled, x = torch.compile(model, backend=backend), torch.randn(2, 4, device="sycl")
    assert torch.equal(compiled(x).cpu(), model(x).cpu())
    compiled(x).sum().backward()
    assert model[0].weight.grad.device.type == "sycl"
    torch._dynamo.reset()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed(use_reentrant: bool) -> None:
    model, x = nn.Linear(4, 4).to("sycl"), torch.randn(2, 4, device="sycl", requires_grad=True)
    model(x).sum().backward()
    expected = x.grad.clone()
    x.grad = None
    checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(x.grad.cpu(), expected.cpu())


def dropped(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5) * x


def dropped_twice(x: torch.Tensor) -> torch.Tensor:
    """Draws from the device's generator, also inside of a fork of it."""
    with torch.random.fork_rng():
        x = dropped(x)
    return nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("drop", [dropped, dropped_twice])
def test_a_checkpoint_draws_the_same_numbers_again(drop, use_reentrant: bool) -> None:
    x = torch.ones(64, device="sycl", requires_grad=True)
    y = checkpoint(drop, x, use_reentrant=use_reentrant)
    after = torch.sycl.get_rng_state()
    y.sum().backward()
    assert torch.equal(y, x.grad / 2) and 0 < y.count_nonzero().item() < 64
    assert torch.equal(torch.sycl.get_rng_state(), after)  # backward draws nothing from the generator outside


def test_checkpoints_and_compiled_functions() -> None:
    """docs/devices.md says what torch refuses: where this fails, torch has learned it."""
    x = torch.ones(64, device="sycl", requires_grad=True)
    y = checkpoint(torch.compile(dropped, backend="aot_eager"), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y, x.grad / 2)
    inside = torch.compile(lambda x: checkpoint(dropped, x, use_reentrant=False), backend="aot_eager")
    with pytest.raises(AssertionError, match="Backend not supported for sycl"):
        inside(x)
    torch._dynamo.reset()


def test_lazy_modules() -> None:
    x = torch.ones(2, 5, device="sycl")
    made_there, moved_late = nn.LazyLinear(3, device="sycl"), nn.LazyLinear(3)
    moved_late(x.cpu())
    assert made_there(x).device == moved_late.to("sycl")(x).device == x.device


def test_vmap_and_inference_mode() -> None:
    x = torch.randn(3, 4, device="sycl")
    assert torch.equal(torch.vmap(lambda row: row * 2 + row[0])(x).cpu(), x.cpu() * 2 + x.cpu()[:, :1])
    with torch.inference_mode():
        y = torch.ones(3, device="sycl") + 1
        y.add_(1)[0] = 5
        assert y.view(3, 1).sum().item() == 11


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_pinned_memory(workers: int) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    total = 0.0
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers):
        assert batch.is_pinned()
        total += batch.to("sycl", non_blocking=True).sum().item()
    assert total == 190


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: type[nn.Module], options: dict) -> None:
    here, there = pair(lambda: kind(4, 5, **options))
    x = torch.randn(3, 2, 4)
    here(x)[0].square().sum().backward()
    there(x.to("sycl"))[0].square().sum().backward()
    for p, q in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad.cpu())


def test_sparse_gradients() -> None:
    here, there = pair(lambda: nn.Embedding(10, 4, sparse=True))
    for model, device in ((here, "cpu"), (there, "sycl")):
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([1, 2, 1], device=device)).square().sum().backward()
            optimizer.step()
    assert torch.equal(here.weight, there.weight.cpu())
