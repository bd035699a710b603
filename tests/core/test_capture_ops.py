"""More of torch's ops, captured and re-run by the interpreter at lengths that were not traced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.core.test_capture import Function, captured, compare, message
from torch import Tensor, nn

from seqmix_ir import Interpreter

INF, NAN = float("inf"), float("nan")
X = ("B", "S", 6)
LONG = [(1, 4, 0), (2, 7, 0), (3, 65, 1)]
PUT = torch.ops.aten.index_put
LIKE = torch.arange(6.0) - 2.5

ORDER: dict[str, Callable[..., object]] = {
    "topk": lambda x: x.topk(3, -1),
    "smallest": lambda x: x.topk(2, -1, largest=False),
    "topk_along": lambda x: x.topk(2, 1).values,
    "sort": lambda x: x.sort(1),
    "descending": lambda x: torch.sort(x, -1, descending=True),
    "stable": lambda x: x.round().sort(dim=1, stable=True, descending=True),
    "argsort": lambda x: (x.argsort(1), x.round().argsort(dim=-1, stable=True)),
    "msort": lambda x: x.msort(),
    "kthvalue": lambda x: x.kthvalue(2, -1),
    "bools": lambda x: ((x > 0).sort(dim=1, stable=True).values, (x > 0).max(-1).values),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(-1, keepdim=True),
    "aminmax": lambda x: (*x.aminmax(dim=1), x.aminmax().max),
    "arg": lambda x: (x.argmin(1), x.argmax(), x.argmin(), x.argmax(keepdim=True)),
    "cummax": lambda x: x.round().cummax(1),
    "cummin": lambda x: x.round().cummin(-1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: (x * 30).logcumsumexp(1),
    "logcumsumexp_of_nothing": lambda x: x.masked_fill(x > 0.5, -INF).logcumsumexp(1),
}
STATISTICS: dict[str, Callable[..., object]] = {
    "var": lambda x: (x.var(-1), x.var(-1, unbiased=False), x.var(), x.var(1, keepdim=True)),
    "correction": lambda x: (x.var((1, 2), correction=2), x.std((0, 1), correction=0)),
    "std": lambda x: (x.std(-1), x.std(unbiased=False), x.std(1, keepdim=True)),
    "var_mean": lambda x: (*torch.var_mean(x, -1), *torch.std_mean(x, (1, 2), keepdim=True)),
    "half": lambda x: x.to(torch.bfloat16).var(-1).float() * 0.01,
    "norms": lambda x: tuple(x.norm(p=p, dim=-1) for p in (1, 2, 3, 0.5, INF, -INF, 0)),
    "norm_all": lambda x: (x.norm(), torch.linalg.vector_norm(x, 2, (1, 2)), torch.norm(x, 1)),
    "linalg_norm": lambda x: torch.linalg.norm(x, dim=1, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=-1) + F.normalize(x, p=1.0, dim=1),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, -1), dim=-1),
    "logsumexp": lambda x: (x.logsumexp((1, 2)), (x * INF).logsumexp(1)),
    "count": lambda x: (x.round().count_nonzero(), x.round().count_nonzero(1)),
    "diff": lambda x: x.diff(n=2),
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: _Turned(nn.BatchNorm1d(6)),
    "batch_plain": lambda: _Turned(nn.BatchNorm1d(6, affine=False)),
    "instance": lambda: _Turned(nn.InstanceNorm1d(6, affine=True)),
    "instance_tracked": lambda: _Turned(nn.InstanceNorm1d(6, track_running_stats=True)),
    "group": lambda: _Turned(nn.GroupNorm(3, 6)),
    "group_plain": lambda: _Turned(nn.GroupNorm(2, 6, affine=False)),
    "layers": lambda: _Split(nn.LayerNorm((2, 3))),
    "rms": lambda: _Split(nn.RMSNorm((2, 3), eps=1e-5)),
    "conv": lambda: _Turned(nn.Conv1d(6, 4, 3, stride=2, padding=1)),
    "same": lambda: _Turned(nn.Conv1d(6, 6, 4, padding="same", dilation=2, groups=3)),
    "valid": lambda: _Turned(nn.Conv1d(6, 12, 1, padding="valid", groups=6, bias=False)),
    "depthwise": lambda: _Turned(nn.Conv1d(6, 6, 4, padding=3, groups=6)),
    "circular": lambda: _Turned(nn.Conv1d(6, 4, 2)),
    "prelu": lambda: _Turned(nn.PReLU(6)),
    "prelu_one": lambda: _Turned(nn.PReLU()),
}
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "hard": lambda x: F.hardswish(x * 3) + F.hardsigmoid(x * 3) + F.hardshrink(x) + F.relu6(x * 5),
    "elus": lambda x: F.elu(x, 0.7) + F.celu(x, 0.3) + F.selu(x),
    "tiny": lambda x: F.elu(x * 1e-6) * 1e6 + F.selu(x * 1e-6) * 1e6,
    "soft": lambda x: F.mish(x) + F.softsign(x) + F.tanhshrink(x) + F.softshrink(x),
    "softmin": lambda x: F.softmin(x, -1) + F.logsigmoid(x) + F.rrelu(x),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "glu": lambda x: F.glu(x, -1),
    "logit": lambda x: x.sigmoid().logit() + x.logit(0.2),
    "angles": lambda x: x.atan() + x.tanh().asin() + x.tanh().acos() + (x / 3).tan(),
    "hyperbolic": lambda x: x.sinh() + x.cosh() + x.asinh() + (x.abs() + 1).acosh(),
    "near_zero": lambda x: (x * 1e-6).expm1() * 1e6 + (x * 1e-6).log1p() * 1e6,
    "atanh": lambda x: (x.tanh() * 0.9).atanh() + x.sigmoid().log2() + x.sigmoid().log10(),
    "atan2": lambda x: torch.atan2(x, x.roll(1, -1).round()),
    "hypot": lambda x: torch.hypot(x, x.roll(1, -1)) + torch.hypot(x * 0, x * 0),
    "rounding": lambda x: x.trunc() + x.fix() + x.frac() + torch.div(x, 0.3, rounding_mode="trunc"),
    "fmod": lambda x: torch.fmod(x, 0.75) + torch.fmod(x, -0.75) + torch.fmod(x, x.abs() + 1),
    "nan": lambda x: torch.where(x > 0, x, x * INF * 0).nan_to_num(3.0).clamp(-9, 9),
    "nan_default": lambda x: (x / x.round().clamp(-1, 1)).nan_to_num() * 1e-30,
    "infinite": lambda x: (1 / x.round()).isinf() | (x * INF).isneginf() & x.isfinite(),
    "finite": lambda x: (1 / x.round()).isfinite() & torch.isposinf(x * INF),
    "fmax": lambda x: torch.fmax(x, (x - 1).sqrt()) + torch.fmin((x - 1).sqrt(), x),
    "clamp": lambda x: x.clamp(x.roll(1, -1), x.roll(2, -1)) + x.clamp(min=x * 2),
    "xlogy": lambda x: torch.xlogy(x.relu(), x.relu()) + torch.addcdiv(x, x, x.abs() + 1, value=2),
    "heaviside": lambda x: torch.heaviside(x.round(), torch.tensor(0.5)),
    "isclose": lambda x: torch.isclose(x, x.round(), atol=0.2) | torch.isclose(x * INF, x * INF),
    "cross": lambda x: (
        torch.cross(x[..., :3], x[..., 3:], -1)
        + torch.linalg.cross(x[..., :3], LIKE[:3].expand(1, 1, 3))
    ),
    "pieces": lambda x: x.tensor_split((2, 5), -1)[1] + x.tensor_split(4, -1)[0][..., :1],
    "unfold": lambda x: x.unfold(-1, 3, 2) + x.unfold(2, 3, 1)[..., :2, :],
    "pools": lambda x: F.avg_pool1d(x, 2) + F.max_pool1d(x, 3, 2)[..., :1],
    "made": lambda x: x @ torch.eye(6) + torch.eye(2, 6)[1] + torch.linspace(0, 1, 6),
}
INDEX: dict[str, Callable[..., Tensor]] = {
    "add": lambda x: x.index_add(2, torch.tensor([0, 3, 0]), x[..., :3], alpha=2),
    "copy": lambda x: x.index_copy(2, torch.tensor([4, 1]), x[..., :2] * 3),
    "fill": lambda x: x.index_fill(-1, torch.tensor([5, 0]), 2.5),
    "put": lambda x: PUT(x, [None, None, torch.tensor([1, -1])], x[..., :2] * 2),
    "put_sum": lambda x: PUT(x, (None, torch.tensor([0, 0])), x[:, :1], True),
    "put_pairs": lambda x: PUT(
        x.transpose(1, 2), (torch.tensor([0, 0]), torch.tensor([1, 3])), x[0, :, :2].T
    ),
    "put_apart": lambda x: PUT(
        x, (torch.tensor([0, 0]), None, torch.tensor([1, 3])), x[0, :, :2].T
    ),
    "put_mask": lambda x: PUT(x, (x > 0,), torch.tensor(7.0)),
    "put_rows": lambda x: PUT(x, (x[..., 0] > 0,), LIKE, accumulate=True),
    "take_apart": lambda x: x[torch.tensor([0, 0]), :, torch.tensor([1, -2])],
    "take": lambda x: x.take(torch.tensor([0, 2, -1])),
    "scatter": lambda x: x.scatter(2, x[..., :2].argsort(-1), x[..., 2:4]),
    "scatter_few": lambda x: x.scatter_add(2, x[:, :1].argsort(-1), x[:, :1] + 1),
    "scatter_value": lambda x: x.scatter(1, torch.zeros_like(x[:, :1]).long(), 3.0),
    "select": lambda x: x.select_scatter(x[..., 0] * 2, 2, -2),
    "slice": lambda x: x.slice_scatter(x[..., :2] * 2, 2, 1, 3) + x.slice_scatter(x, 1),
}
_REDUCE = [(r, s) for r in ("sum", "mean", "amax", "amin") for s in (True, False)]


class _Turned(nn.Module):
    """A module that wants its channels on axis 1."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        for buffer in inner.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2))


class _Split(_Turned):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.unflatten(-1, (2, 3)))


def _compare(function: Callable[..., object], **options) -> None:
    out = function(torch.randn(2, 5, 6))
    results = len(out) if isinstance(out, tuple) else 1
    module = Function(lambda x: tuple(y) if isinstance(y := function(x), tuple) else y)
    compare(module, [X], results=results, tol=2e-5, sizes=LONG, **options)


@pytest.mark.parametrize("name", ORDER)
def test_order(name):
    _compare(ORDER[name])


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name):
    _compare(STATISTICS[name])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_elements(name):
    _compare(ACTIVATIONS[name])


@pytest.mark.parametrize("name", INDEX)
def test_index(name):
    _compare(INDEX[name])


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(("reduce", "include_self"), _REDUCE)
def test_scatter_reduce(reduce, include_self):
    def run(x: Tensor) -> Tensor:
        index = (x[..., :4] * 2).round().clamp(-2, 2).long() + 2
        y = x.scatter_reduce(2, index, x[..., 2:], reduce, include_self=include_self)
        if reduce == "sum":
            return y
        kind = torch.tensor([0, 3, 0])
        return y + x.index_reduce(2, kind, x[..., :3], reduce, include_self=include_self)

    _compare(run)


@pytest.mark.parametrize("name", NORMS)
def test_layers(name):
    torch.manual_seed(3)
    compare(NORMS[name]().eval(), [X], sizes=LONG, tol=2e-5)


def test_integers():
    def run(i: Tensor) -> tuple[Tensor, ...]:
        near = i - 1
        return (
            torch.div(near, 2, rounding_mode="trunc"),
            torch.fmod(near, 2),
            torch.fmod(near, -2),
            i.cumprod(1),
            i.float().trunc().long().cummax(1).values,
            i.sort(dim=1, stable=True, descending=True).values,
            i.isnan() | i.isinf(),
        )

    compare(Function(run), [("B", "S")], [torch.int64], results=7)


def test_a_filter_as_long_as_the_sequence():
    def run(x: Tensor, h: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, 2), (h.shape[1] - 1, 0))
        return F.conv1d(x, h.unsqueeze(1).flip(-1), groups=6)

    compare(Function(run), [X, (6, "S")], sizes=LONG, tol=1e-4)


def test_nan_is_the_largest():
    row = torch.tensor([[1.0, NAN, 3.0, NAN, INF, -INF]])
    found, _ = captured(
        Function(lambda x: (*x.sort(1), *x.cummax(1), *x.topk(3))), [("B", 6)], None, 6
    )
    out = Interpreter(found.module, {}).run("forward", {"x0": row.numpy()})
    want = (*row.sort(dim=1, stable=True), *row.cummax(1), *row.topk(3))
    for have, tensor in list(zip(out.values(), want, strict=True))[:4]:
        np.testing.assert_array_equal(have, tensor.numpy())


REFUSED: dict[str, tuple[Callable[..., object], str]] = {
    "nonzero": (lambda x: x.nonzero().sum(), "its size depends on values"),
    "masked_select": (lambda x: x.masked_select(x > 0).sum(), "its size depends on values"),
    "unique": (lambda x: x.unique().sum(), "its size depends on values"),
    "rand_like": (lambda x: x + torch.rand_like(x), "it is random"),
    "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()), "it is random"),
    "dropout": (lambda x: F.dropout(x, 0.5, training=True), "call .eval()"),
    "median": (lambda x: x.median(-1).values, "bind an op with seqmix.op"),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), "call .eval()"),
    "transposed": (lambda x: F.conv_transpose1d(x.mT, torch.ones(6, 1, 2)), "no counterpart"),
    "complex": (lambda x: torch.view_as_complex(x.unflatten(-1, (3, 2))).abs(), "complex"),
    "product": (lambda x: x.scatter_reduce(2, x.argsort(-1), x, "prod"), "reduce='prod'"),
    "masked_scatter": (lambda x: x.masked_scatter(x > 0, x), "no counterpart"),
    "attention_dropout": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        "dropout is on",
    ),
    "matrix_norm": (lambda x: torch.linalg.norm(x, "nuc", (1, 2)), "linalg"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_line(name):
    function, reason = REFUSED[name]
    text = message(Function(function))
    assert reason in text
    assert "test_capture" in text


def test_random_ops_name_the_module():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Function(lambda x: x + torch.randn_like(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    text = message(Outer())
    assert text.startswith("inner (test_capture")
    assert "aten.randn_like.default" in text
