"""Captured modules, re-run by the interpreter at lengths that were not traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix.capture import Captured, capture_function
from seqmix.errors import CaptureError
from seqmix.ops import attention, causal_conv1d, rotary
from seqmix.scan import scan
from seqmix_ir import DimInfo, Interpreter, parse, show, verify

SIZES = [(1, 1, 0), (1, 1, 1), (2, 7, 0), (1, 9, 130), (3, 65, 1)]


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> object:
        return self.function(*args)


def captured(
    module: nn.Module, axes, dtypes=None, results: int = 1
) -> tuple[Captured, Callable[..., list[Tensor]]]:
    """The module captured at (2, 5, 7), and a maker of its arguments at other sizes."""
    dtypes = dtypes or [torch.float32] * len(axes)

    def make(B: int, S: int, P: int) -> list[Tensor]:
        torch.manual_seed(B + 10 * S + P)
        sizes = {"B": B, "S": S, "P": P}
        out = []
        for shape, dtype in zip(axes, dtypes, strict=True):
            numbers = [sizes.get(a, a) for a in shape]
            out.append(
                torch.randn(numbers).to(dtype)
                if dtype.is_floating_point
                else torch.randint(0, 3, numbers).to(dtype)
            )
        return out

    names = [f"x{i}" for i in range(len(axes))]
    found = capture_function(
        module,
        make(2, 5, 7),
        input_names=names,
        output_names=[f"y{i}" for i in range(results)],
        dynamic=[tuple(a if isinstance(a, str) else None for a in shape) for shape in axes],
        dims=[DimInfo("P", 0)],
    )
    return found, make


def compare(
    module: nn.Module, axes, dtypes=None, results: int = 1, sizes=SIZES, tol=1e-5
) -> Captured:
    """Capture, and compare the interpreter with torch at every size; returns the capture."""
    found, make = captured(module, axes, dtypes, results)
    weights = {k: v.numpy() for k, v in found.weights.items()}
    verify(found.module)
    assert show(parse(show(found.module))) == show(found.module)
    interpreter = Interpreter(found.module, weights)
    for size in sizes:
        args = make(*size)
        with torch.no_grad():
            expected = module.eval()(*args)
        expected = expected if isinstance(expected, tuple) else (expected,)
        got = interpreter.run("forward", {f"x{i}": a.numpy() for i, a in enumerate(args)})
        for want, have in zip(expected, got.values(), strict=True):
            assert have.shape == tuple(want.shape), size
            np.testing.assert_allclose(have, want.numpy(), rtol=tol, atol=tol, err_msg=str(size))
    return found


X = ("B", "S", 6)
FLOAT: dict[str, Callable[..., object]] = {
    "scalars": lambda x: 2 - (x * 3 + 1) / 4 - x,
    "alpha": lambda x: torch.sub(torch.add(x, x, alpha=2), x, alpha=0.5),
    "promotion": lambda x: x + torch.arange(6) * 2 + (x > 0),
    "powers": lambda x: x**2 + x**3 + x.abs() ** 0.5 + (x.abs() + 1) ** -0.5 + x.abs() ** 1.7,
    "base": lambda x: 2.0**x,
    "unary": lambda x: x.neg().exp() + x.sin().cos() + x.erf(),
    "rounding": lambda x: x.floor() + x.ceil() + x.round() + x.sign(),
    "roots": lambda x: (x.abs() + 1).rsqrt() + (x.abs() + 2).sqrt().log().reciprocal(),
    "activations": lambda x: F.relu(x) + F.silu(x) + x.sigmoid() + x.tanh() + F.softplus(x),
    "gelus": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "log_sigmoid": lambda x: F.logsigmoid(x) + F.leaky_relu(x) + F.elu(x) + F.hardtanh(x),
    "softplus": lambda x: F.softplus(x, beta=2),
    "clamp": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0) + x.clamp_max(0.25),
    "compare": lambda x: (x > 0) & (x < 1) | (x == 0) ^ (x != 2) & ~(x >= 0.5),
    "logic": lambda x: torch.logical_and(x > 0, torch.logical_not(x < 1)).to(torch.int64),
    "where": lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, -1, x),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1e9),
    "extrema": lambda x: torch.maximum(x, -x) + torch.minimum(x, x * 2) + torch.max(x, x + 1),
    "remainder": lambda x: x % 2 + torch.remainder(x, -0.7) + x // 0.3,
    "isnan": lambda x: torch.isnan(x).any(),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3) + torch.addcmul(x, x, x, value=0.5),
    "view": lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).flatten(2),
    "reshape": lambda x: x.reshape(-1, 6).unflatten(1, (3, 2)),
    "permute": lambda x: x.permute(2, 0, 1).mT.movedim(0, -1),
    "squeeze": lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze(1).squeeze(-1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 4, -1, -1),
    "slices": lambda x: (x[:, -1:], x[:, 1:], x[:, :-1], x[..., 1:5:2], x[:, 0], x[..., -1]),
    "chunk": lambda x: sum(x.chunk(3, -1)) + x.split([2, 4], -1)[0] + x.split(2, -1)[2],
    "unbind": lambda x: sum(x.unbind(-1)),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "cat": lambda x: torch.cat([x, torch.zeros(x.shape[0], 3, 6), x * 2], 1),
    "cat_types": lambda x: torch.cat([x, torch.ones_like(x, dtype=torch.int64)], -1),
    "repeat": lambda x: x.repeat(1, 2, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1) + 0,
    "flip": lambda x: x.flip(1, 2),
    "roll": lambda x: x.roll(1, 1) + x.roll(-2, -1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=0.5) + 1,
    "cut": lambda x: F.pad(x, (-1, 0)),
    "sums": lambda x: x.sum(-1) + x.mean(-1) + x.amax(-1) + x.amin(-1) + x.prod(-1),
    "sum_all": lambda x: x.sum() + x.mean() + x.max(),
    "keepdim": lambda x: x - x.mean((1, 2), keepdim=True),
    "sum_bool": lambda x: (x > 0).sum(1),
    "any_all": lambda x: (x > 0).any(1) | (x > -9).all(1) | (x > 0).any(),
    "argmax": lambda x: x.argmax(-1) + x.max(-1).indices,
    "var": lambda x: x.var(-1, correction=0) + x.norm(dim=-1),
    "cumsum": lambda x: x.cumsum(1) + (x > 0).cumsum(1),
    "softmax": lambda x: x.softmax(-1) + F.log_softmax(x, -1) + x.logsumexp(-1, keepdim=True),
    "logsumexp": lambda x: x.masked_fill(x > -9, float("-inf")).logsumexp(-1),
    "rms": lambda x: F.rms_norm(x, (6,)) + F.rms_norm(x, (6,), torch.ones(6) * 2, 1e-3),
    "layer_norm": lambda x: F.layer_norm(x, (6,), torch.arange(6.0)),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 3, torch.arange(6.0), torch.ones(6)),
    "matmul": lambda x: x @ x.transpose(-1, -2) @ x,
    "vector": lambda x: x @ torch.arange(6.0),
    "bmm": lambda x: torch.bmm(x, x.mT),
    "einsum": lambda x: torch.einsum("bsd,btd->bts", x, x * 2),
    "einsum_weights": lambda x: torch.einsum(
        "b s d, d e -> e b s", x, torch.arange(12.0).view(6, 2)
    ),
    "einsum_outer": lambda x: torch.einsum("bsd,bse->bsde", x, x),
    "sizes": lambda x: x * x.shape[1] + torch.arange(x.shape[1]).unsqueeze(-1) + x / x.shape[0],
    "arange": lambda x: torch.arange(1, 2 * x.shape[1] + 1, 2) + torch.arange(0.0, 1.0, 0.25).sum(),
    "full": lambda x: torch.full((x.shape[1], 2), 3.5) + x.new_zeros(1) + torch.ones_like(x).sum(),
    "tril": lambda x: (x @ x.mT).tril() + (x @ x.mT).triu(1),
    "triangle": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1),
    "no_grad": lambda x: _without_gradient(x) + 1,
    "dropout": lambda x: F.dropout(x, 0.5, training=False).contiguous().clone().detach(),
    "casts": lambda x: x.double().float().to(torch.int64).type_as(x) + x.to(torch.bfloat16).float(),
    "index": lambda x: x[:, :, [1, 3, -1]],
    "index_pair": lambda x: x[torch.arange(x.shape[0]), torch.zeros_like(x[:, 0, 0]).long() - 1],
    "halves": lambda x: x[:, x.shape[1] // 2 :],
    "half": lambda x: x[:, : x.shape[1] // 2 + 1],
    "shift": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1),
    "window": lambda x: (x[:, -3:].sum(1) + x[:, :3].sum(1), x[:, 2:4]),
    "short": lambda x: F.linear(x[:, 1:], torch.ones(4, 6)).transpose(1, 2).reshape(x.shape[0], -1),
}


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


@pytest.mark.parametrize("name", FLOAT)
def test_functions_of_floats(name):
    module = Function(FLOAT[name])
    out = module(torch.randn(2, 5, 6))
    results = len(out) if isinstance(out, tuple) else 1
    compare(module, [X], results=results, tol=2e-5)


INTS: dict[str, Callable[..., object]] = {
    "arithmetic": lambda i: (i * 3 - 1) // 2 + i % 2 + (-i) % 3,
    "to_float": lambda i: i / 2 + i.float().exp(),
    "compare": lambda i: (i >= 1) & (i < 3.5),
    "cumsum": lambda i: i.cumsum(1) + i.sum(1, keepdim=True),
    "gather": lambda i: torch.gather(i * 2, 1, i.clamp(max=0)),
    "scatter": lambda i: torch.zeros_like(i).scatter(1, i * 0, 1),
    "one_hot": lambda i: F.one_hot(i, 4),
    "bools": lambda i: (i > 0) * (i < 2) + (i == 1),
    "squares": lambda i: i**2 + i.square(),
}


@pytest.mark.parametrize("name", INTS)
def test_functions_of_integers(name):
    compare(Function(INTS[name]), [("B", "S")], [torch.int64])


def test_past_and_present_sizes():
    def join(x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([past, x], 1)
        return joined[:, -x.shape[1] :] * 2, joined[:, past.shape[1] :].sum(1) + joined.shape[1]

    compare(Function(join), [X, ("B", "P", 6)], results=2)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 6)
        self.norm = nn.LayerNorm(6)
        self.rms = nn.RMSNorm(6, eps=1e-5)
        self.up = nn.Linear(6, 11, bias=False)
        self.down = nn.Linear(11, 6)
        self.head = nn.Linear(6, 3, bias=False)
        self.head.weight = self.embed.weight
        self.drop = nn.Dropout(0.5)
        self.register_buffer("kept", torch.randn(6))
        self.register_buffer("lost", torch.randn(6), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.kept + self.lost
        x = x + self.down(F.silu(self.up(self.norm(x))))
        return self.head(self.drop(self.rms(x))) + torch.tensor([1.0, 2.0, 3.0])


def test_weights_have_their_names_and_tied_ones_have_one():
    found = compare(Layers(), [("B", "S")], [torch.int64])
    assert set(found.weights) == {
        "embed.weight",
        "norm.weight",
        "norm.bias",
        "rms.weight",
        "up.weight",
        "down.weight",
        "down.bias",
        "kept",
        "lost",
    }
    assert list(found.module.weights()) == list(found.weights)


def test_locations_name_the_module_and_the_line():
    found, _ = captured(Layers(), [("B", "S")], [torch.int64])
    ops = {op.name: op for op in found.module.graph("forward").block.ops}
    assert str(ops["rms_norm"].loc).startswith("rms (test_capture.py:")
    assert str(ops["silu"].loc).startswith("root (test_capture.py:")


def test_large_constants_are_weights():
    table = torch.randn(5, 6)
    found = compare(Function(lambda x: x @ table.T), [X])
    assert [v.shape for v in found.weights.values()] == [(5, 6)]


class Mixer(nn.Module):
    """The shared ops together, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 8 * 4 * 2, bias=False)
        self.conv = nn.Parameter(torch.randn(6, 3))

    def forward(self, x, qp, past_k, past_v, past_p, tail):
        B, S, _ = x.shape
        x, tail = causal_conv1d(x.transpose(1, 2), self.conv, None, tail, activation="silu")
        q, k, v = self.qkv(x.transpose(1, 2)).split([32, 16, 16], -1)
        q = q.view(B, S, 4, 8).transpose(1, 2)
        k, v = (t.view(B, S, 2, 8).transpose(1, 2) for t in (k, v))
        angle = qp.clamp(min=0).float().unsqueeze(-1) * torch.arange(1, 4)
        q, k = (rotary(t, angle.cos(), angle.sin()) for t in (q, k))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        kp = torch.cat([past_p, qp], 1)
        y = attention(q, k, v, qp, kp, window=5)
        return y.transpose(1, 2).reshape(B, S, -1), k, v, kp, tail


def test_mixer_ops_stay_one_op():
    axes = [X, ("B", "S"), *[("B", 2, "P", 8)] * 2, ("B", "P"), ("B", 6, 2)]
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float32, torch.int64, torch.float32]
    found = compare(Mixer(), axes, dtypes, results=5)
    names = [op.name for op in found.module.graph("forward").block.ops]
    assert [n for n in names if n in ("attention", "rotary", "causal_conv1d")] == [
        "causal_conv1d",
        "rotary",
        "rotary",
        "attention",
    ]


class Cell(nn.Module):
    """An LSTM by scan, with its weights closed over or passed."""

    def __init__(self, passed: bool, axis: int = 1, reverse: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, batch_first=True)
        self.passed, self.axis, self.reverse = passed, axis, reverse

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        inner, outer, *biases = self.lstm.parameters()
        w, bias = (inner, outer), biases[0] + biases[1]

        def cell(carries, slices, constants):
            (h, c), (x,) = carries, slices
            inner, outer, add = constants if self.passed else (*w, bias)
            gates = F.linear(x, inner) + F.linear(h, outer) + add
            i, f, g, o = gates.chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (h, c), (h,)

        x = x if self.axis == 1 else x.transpose(0, 1)
        constants = (*w, bias) if self.passed else ()
        (h, c), (y,) = scan(cell, (h, c), (x,), constants, axis=self.axis, reverse=self.reverse)
        return y, h, c


LSTM_SIZES = [(1, 1, 0), (2, 7, 0), (3, 65, 0)]


@pytest.mark.parametrize(
    ("axis", "reverse", "passed"),
    [
        case if sum(case) in (0, 3) else pytest.param(*case, marks=pytest.mark.full)
        for case in itertools.product((0, 1), (False, True), (False, True))
    ],
)
def test_lstm_captures_as_one_scan(passed, reverse, axis):
    axes = [X, ("B", 4), ("B", 4)]
    found = compare(Cell(passed, axis, reverse), axes, results=3, sizes=LSTM_SIZES)
    (op,) = (op for op in found.module.graph("forward").block.ops if op.name == "scan")
    assert op.defn.attributes() == {"carries": 2, "sequences": 1, "axis": axis, "reverse": reverse}
    names = [op.name for op in found.module.graph("forward").block.ops]
    assert "gather" not in names
    assert names.count("transpose") == (1 if axis == 0 else 0)


def test_scan_uses_sizes_and_constants():
    def run(x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        total, length = x.sum((1, 2)), x.shape[1]

        def cell(carries, slices, constants):
            (h,), (x, y) = carries, slices
            new = h * 0.5 + x + constants[0].unsqueeze(-1) / length
            return (new,), (new.sum(-1), y, h)

        (h,), out = scan(cell, (h,), (x, x * 2), (total, total))
        return (h, *out)

    compare(Function(run), [X, ("B", 6)], results=4, sizes=LSTM_SIZES)


def message(module: nn.Module, axes=(X,), dtypes=None) -> str:
    with pytest.raises(CaptureError) as error:
        captured(module, list(axes), dtypes)
    return str(error.value)
