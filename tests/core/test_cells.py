"""Recurrent cells written with seqmix.scan: eagerly, captured, and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.core.cells import GRU, LSTM, MinGRU, gru_cell, lstm_cell, min_gru_cell
from torch import Tensor, nn

import seqmix
from seqmix.backend import Program
from seqmix.capture import capture_function
from seqmix.compile import compile
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.errors import CaptureError, ConfigError
from seqmix.testing import check_mixer
from seqmix.testing.inputs import distance
from seqmix.testing.laws import check_laws
from seqmix.weights import Weights
from seqmix_ir.graph import DimInfo

CONFIG = ModelConfig(
    vocab_size=1,
    width=1,
    context_length=1,
    blocks=[BlockConfig(steps=[Kind.model_validate({"kind": "mlp", "hidden": 1})])],
)
B, S = "B", "S"
F64 = torch.float64


def recurrent(cls: Any, inputs: int, hidden: int) -> tuple[nn.Module, Tensor, tuple[Tensor, ...]]:
    """A layer of torch, what its input contributes to the gates, and the recurrent weights."""
    torch.manual_seed(5)
    layer = cls(inputs, hidden, batch_first=True).double()
    x = torch.randn(2, 9, inputs, dtype=F64, requires_grad=True)
    return layer, x, (layer.weight_hh_l0, layer.bias_hh_l0)


def unrolled(
    cell: Any, layer: nn.Module, x: Tensor, first: tuple[Tensor, ...], constants: Any
) -> Any:
    gates = nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0)
    real = torch.ones(*x.shape[:2], 1, dtype=torch.bool)
    return seqmix.scan(cell, first, (gates, real), constants)


@pytest.mark.parametrize(
    ("cls", "cell", "states"), [(nn.LSTM, lstm_cell, 2), (nn.GRU, gru_cell, 1)]
)
def test_cells_are_those_of_torch(cls, cell, states):
    layer, x, constants = recurrent(cls, 5, 3)
    first = tuple(torch.randn(2, 3, dtype=F64, requires_grad=True) for _ in range(states))
    last, (y,) = unrolled(cell, layer, x, first, constants)
    before = tuple(t.unsqueeze(0) for t in first)
    expected, after = layer(x, before if states == 2 else before[0])
    after = after if states == 2 else (after,)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(y, expected, **close)
    torch.testing.assert_close(last, tuple(t[0] for t in after), **close)
    inputs = [x, *first, *layer.parameters()]
    wanted = torch.autograd.grad(expected.sin().sum() + sum(t.sin().sum() for t in after), inputs)
    found = torch.autograd.grad(y.sin().sum() + sum(t.sin().sum() for t in last), inputs)
    torch.testing.assert_close(found, wanted, **close)


@pytest.mark.parametrize(
    "mixer", [LSTM, pytest.param(GRU, marks=pytest.mark.full), MinGRU], ids=lambda c: c.__name__
)
def test_cells_are_mixers_like_any_other(mixer):
    backends = ("torch", "reference", "onnxruntime")
    check_mixer(mixer, width=6, backends=backends).raise_for_failures()


class LetsPaddingIn(MinGRU):
    def forward(self, x, state, ctx):
        z, candidate = self.input(x).chunk(2, -1)
        every = torch.ones_like(ctx.valid).unsqueeze(-1)
        sequences = (torch.sigmoid(z), candidate, every)
        (last,), (out,) = seqmix.scan(min_gru_cell, (state["hidden"],), sequences)
        return self.finish(out, ctx), {"hidden": last}


def test_padding_must_gate_the_carries():
    mixer = LetsPaddingIn(LetsPaddingIn.Config(), 6).double().eval()
    broken = {row.check for row in check_laws(mixer, 6, (2,)) if not row.ok}
    assert broken == {"padding", "padding, afterwards", "padding, nothing else"}


@dataclass
class Way:
    """A use of scan: a function of tensors, their axes, and the dtype of each."""

    run: Callable[..., Any]
    axes: tuple[tuple[Any, ...], ...]
    dtypes: tuple[torch.dtype, ...] = ()
    tolerance: float = 2e-5


def same_carry_twice(h, x):
    def cell(carries, slices, constants):
        new = torch.tanh(carries[0] + slices[0])
        return (new, new), (new,)

    (a, b), (y,) = seqmix.scan(cell, (h, h), (x,))
    return a, b, y


def passed_through(h, x):
    def cell(carries, slices, constants):
        return (carries[1], carries[0]), (slices[0], carries[0])

    (a, b), (y, z) = seqmix.scan(cell, (h, h * 2), (x,))
    return a, b, y, z


def kept(h, x):
    (a,), (y,) = seqmix.scan(lambda c, s, k: (c, (s[0] + c[0],)), (h,), (x,))
    return a, y


def constant_as_carry(h, x, w):
    def cell(carries, slices, constants):
        return (constants[0],), (carries[0] * slices[0], constants[0])

    (a,), (y, z) = seqmix.scan(cell, (h,), (x,), (w,))
    return a, y, z


def slice_as_carry(h, x):
    (a,), (y,) = seqmix.scan(lambda c, s, k: ((s[0],), (c[0] - s[0],)), (h,), (x,))
    return a, y


def view_of_a_carry(h, x):
    def cell(carries, slices, constants):
        new = carries[0] * slices[0]
        return (new.flip(0),), (new[:, :2], new.unsqueeze(1).squeeze(1))

    (a,), (y, z) = seqmix.scan(cell, (h,), (x,))
    return a, y, z


def nested(h, x):
    """A row of the outer sequence is itself a sequence."""

    def inner(carries, slices, constants):
        new = torch.sin(carries[0] + slices[0] * constants[0])
        return (new,), (new * 2,)

    def outer(carries, slices, constants):
        (last,), (y,) = seqmix.scan(inner, carries, slices, constants)
        return (last + 1,), (y.sum(1),)

    (a,), (y,) = seqmix.scan(outer, (h,), (x,), (h * 0.5,))
    return a, y


def nested_backwards(h, x):
    def outer(carries, slices, constants):
        def inner(c, s, k):
            return (c[0] * 0.5 + s[0],), (c[0],)

        (last,), (y,) = seqmix.scan(inner, carries, slices, axis=1, reverse=True)
        return (torch.tanh(last),), (y,)

    (a,), (y,) = seqmix.scan(outer, (h,), (x,), reverse=True)
    return a, y


def backwards(h, x):
    def cell(carries, slices, constants):
        new = torch.tanh(carries[0] * 0.9 + slices[0])
        return (new,), (new - slices[0],)

    (a,), (y,) = seqmix.scan(cell, (h,), (x,), reverse=True)
    return a, y


def ranks(h, m, x, g, r):
    """Carries and sequences of rank 2 and 3, a sequence without features, no constants."""

    def cell(carries, slices, constants):
        (h, m), (x, g, r) = carries, slices
        m = m * g.reshape(-1, 1, 1) + x.unsqueeze(-1) * r.unsqueeze(-2)
        h = torch.tanh(h + m.sum(-1))
        return (h, m), (h, m, m.sum((1, 2)))

    (h, m), (y, z, w) = seqmix.scan(cell, (h, m), (x, g, r))
    return h, m, y, z, w


def wide_carry(h, x):
    """A bf16 sequence that is summed in float32."""

    def cell(carries, slices, constants):
        new = carries[0] * 0.75 + slices[0].float()
        return (new,), (new.to(slices[0].dtype),)

    (a,), (y,) = seqmix.scan(cell, (h,), (x,))
    return a, y


def counted(h, n, x):
    """An integer carry beside a float one, and a bool output."""

    def cell(carries, slices, constants):
        up = slices[0] > carries[0]
        n = carries[1] + up.to(torch.int64)
        return (torch.where(up, slices[0], carries[0]), n), (up, n)

    (h, n), (up, y) = seqmix.scan(cell, (h, n), (x,))
    return h, n, up, y


def closed_over(h, x, w):
    """Tensors that the cell sees from outside, one of them computed there."""
    scale = w.sum(-1)

    def cell(carries, slices, constants):
        new = torch.tanh(carries[0] @ w + slices[0] * scale)
        return (new,), (new,)

    (a,), (y,) = seqmix.scan(cell, (h,), (x,))
    return a, y


def learned_start(x, w):
    """The first carry is one row for the whole batch, the sequence is not contiguous."""

    def cell(carries, slices, constants):
        new = torch.tanh(carries[0] + slices[0])
        return (new,), (new,)

    (a,), (y,) = seqmix.scan(cell, (w[0].expand(x.shape[1], -1),), (x.transpose(0, 1),))
    return a, y


def transposed(m, x):
    """A carry that leaves the cell with other strides than it came with."""

    def cell(carries, slices, constants):
        new = torch.tanh(carries[0].transpose(1, 2) + slices[0].unsqueeze(1))
        return (new.transpose(1, 2),), (new.transpose(1, 2).sum(-1),)

    (a,), (y,) = seqmix.scan(cell, (m.transpose(1, 2),), (x,))
    return a, y


def first_axis(h, x):
    (a,), (y,) = seqmix.scan(
        lambda c, s, k: ((torch.sin(c[0] + s[0]),), (c[0][:, 0],)), (h,), (x,), axis=0
    )
    return a, y


def no_outputs(h, x):
    (a,), nothing = seqmix.scan(lambda c, s, k: ((c[0] * 0.5 + s[0],), ()), (h,), (x,))
    assert nothing == ()
    return (a,)


H, X, W = (B, 3), (B, S, 3), (3, 3)
BF16 = torch.bfloat16
WAYS = {
    way.run.__name__: way
    for way in (
        Way(same_carry_twice, (H, X)),
        Way(passed_through, (H, X)),
        Way(kept, (H, X)),
        Way(constant_as_carry, (H, X, H)),
        Way(slice_as_carry, (H, X)),
        Way(view_of_a_carry, (H, X)),
        Way(nested, (H, (B, S, 4, 3))),
        Way(nested_backwards, (H, (B, S, 4, 3))),
        Way(backwards, (H, X)),
        Way(ranks, (H, (B, 3, 2), X, (B, S), (B, S, 2))),
        Way(wide_carry, (H, X), (torch.float32, BF16), 4e-2),
        Way(counted, (H, H, X), (torch.float32, torch.int64, torch.float32)),
        Way(closed_over, (H, X, W)),
        Way(learned_start, ((S, B, 3), W)),
        Way(transposed, ((B, 3, 3), X)),
        Way(first_axis, (H, (S, B, 3))),
        Way(no_outputs, (H, X)),
    )
}


def tensors(way: Way, batch: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    sizes = {B: batch, S: length}
    dtypes = way.dtypes or (torch.float32,) * len(way.axes)
    shapes = ([sizes.get(axis, axis) for axis in axes] for axes in way.axes)
    return [
        torch.randn(shape, generator=generator).to(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


class Called(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *given: Tensor) -> Any:
        return self.run(*given)


def captured(way: Way) -> Program:
    given = tensors(way, 2, 5)
    names = [f"x{i}" for i in range(len(given))]
    results = [f"y{i}" for i in range(len(way.run(*given)))]
    found = capture_function(
        Called(way.run),
        given,
        input_names=names,
        output_names=results,
        dynamic=[tuple(a if isinstance(a, str) else None for a in axes) for axes in way.axes],
        dims=[DimInfo(B), DimInfo(S)],
    )
    assert [op.name for op in found.module.graph("forward").block.ops].count("scan") == 1
    return Program(found.module, Weights.of_tensors(found.weights), CONFIG)


# Each capture takes a second; these differ least from the others and from the tests of capture.
SLOW = ("nested_backwards", "closed_over", "first_axis", "view_of_a_carry")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in WAYS]
)
def test_eager_captured_and_onnx_agree_at_lengths_not_traced(name):
    way = WAYS[name]
    program = captured(way)
    for backend in ("reference", "onnxruntime"):
        executable = compile(program, backend, cache=False)
        for batch, length in ((2, 5), (1, 1), (3, 13), (2, 2)):
            given = tensors(way, batch, length)
            wanted = way.run(*given)
            found = executable.run("forward", {f"x{i}": t for i, t in enumerate(given)})
            for i, tensor in enumerate(wanted):
                assert found[f"y{i}"].dtype == tensor.dtype, (backend, i)
                assert distance(found[f"y{i}"], tensor) <= way.tolerance, (backend, i, length)


@pytest.mark.parametrize("name", [n for n in WAYS if n not in ("counted", "wide_carry")])
def test_gradients_of_every_way(name):
    way = WAYS[name]
    given = [t.double().requires_grad_() for t in tensors(way, 2, 3)]
    torch.autograd.gradcheck(way.run, given, fast_mode=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.double(), r"carry 0 was float32\[2, 3\] and became float64\[2, 3\]"),
        (lambda t: t.sum(-1), r"carry 0 was float32\[2, 3\] and became float32\[2\]"),
        (lambda t: t.to(BF16), r"carry 0 was float32\[2, 3\] and became bfloat16\[2, 3\]"),
    ],
)
def test_a_carry_keeps_its_type_captured_too(change, text):
    def run(h, x):
        (a,), _ = seqmix.scan(lambda c, s, k: ((change(c[0] + s[0]),), ()), (h,), (x,))
        return (a,)

    with pytest.raises(ConfigError, match=text):
        run(*tensors(Way(run, (H, X)), 2, 5))
    names = ["h"]
    with pytest.raises((CaptureError, ConfigError), match="carry 0 was float32"):
        capture_function(
            Called(run),
            tensors(Way(run, (H, X)), 2, 5),
            input_names=[*names, "x"],
            output_names=["a"],
            dynamic=[(B, None), (B, S, None)],
        )
