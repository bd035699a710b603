"""The mLSTM cell as Triton kernels, in the interpreter, against its equations in float64.

B batch, H heads, S sequence, K key size, V value size.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.backends.triton_kernels import TOLERANCE, close, poisoned
from tests.plugins.mlstm_cases import VARIANTS, operands, recurrence
from torch import Tensor

from seqmix import registry
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Value
from seqmix_ir.types import TensorType
from seqmix_triton import kernel as kernel_module
from seqmix_triton.backend import TritonBackend
from seqmix_triton.kernel import Config, Kernel
from seqmix_triton.library import all_kernels
from seqmix_xlstm.mlstm import mlstm
from seqmix_xlstm.mlstm_op import Mlstm
from seqmix_xlstm.triton.implementation import KERNELS
from seqmix_xlstm.triton.lowering import MLSTM
from seqmix_xlstm.triton.op import mlstm_backward, mlstm_forward

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
NAMES = ("h", "state", "m", *(f"gradient of {x}" for x in ("q", "k", "v", "gates, m", "state")))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@contextlib.contextmanager
def tiles(size: int) -> Iterator[None]:
    """Small tiles everywhere, so that every loop over tiles runs."""
    rows = Config({"L": size, "BLOCK_K": 16, "BLOCK_V": 16})
    tokens = Config({"BLOCK_S": size})
    with contextlib.ExitStack() as stack:
        for kernel in KERNELS.kernels:
            if {"L", "BLOCK_S"} & set(kernel.fn.arg_names):
                config = rows if "L" in kernel.fn.arg_names else tokens
                stack.enter_context(kernel.forced(config))
        yield


def token_by_token(*given: Tensor, chunk: int = 64, **attributes: Any) -> tuple[Tensor, ...]:
    """The equations, with nothing of the op's own code; differentiated by torch."""
    return recurrence(*given, **attributes)


def compare(
    given: list[Tensor],
    chunk: int = 64,
    reference: Callable[..., tuple[Tensor, ...]] = token_by_token,
    **attributes: Any,
) -> None:
    """Results and gradients are those of the reference in float64.

    Where ``n . q`` is close to 0, h is badly conditioned: in float32 the kernels may be as far off
    as four times the reference in float32.
    """
    attributes["chunk"], dtype = chunk, given[0].dtype
    like = (given[2], *given[5:])
    grads = tuple(torch.randn(x.shape).to(x.dtype) for x in like)
    truth = differentiated(reference, [x.double() for x in given], grads, attributes)
    with poisoned():
        outputs = mlstm_forward(*given, **attributes)
        slopes = mlstm_backward(grads, tuple(given), outputs, (True,) * 7, **attributes)
    found = [x for x in slopes if x is not None]
    assert [x.dtype for x in (*outputs[:3], *found)] == [x.dtype for x in (*like, *given)]
    allowed = [TOLERANCE[dtype]] * len(NAMES)
    if dtype == F32:
        plain = errors(differentiated(reference, given, grads, attributes), truth)
        allowed = [max(a, 4 * e) for a, e in zip(allowed, plain, strict=True)]
    for name, error, limit in zip(
        NAMES, errors([*outputs[:3], *found], truth), allowed, strict=True
    ):
        assert error <= limit, f"{name}: error {error}, allowed {limit}"


def differentiated(
    function: Callable[..., tuple[Tensor, ...]],
    given: list[Tensor],
    grads: tuple[Tensor, ...],
    attributes: dict[str, Any],
) -> list[Tensor]:
    """The results, and the gradients of all operands."""
    leaves = [x.detach().clone().requires_grad_() for x in given]
    results = function(*leaves, **attributes)
    torch.autograd.backward(results, [g.to(x.dtype) for g, x in zip(grads, results, strict=True)])
    slopes = [x.grad for x in leaves if x.grad is not None]
    return [*(x.detach() for x in results), *slopes]


def errors(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    """The largest differences, relative to the largest entry of each."""
    return [_distance(a, b) for a, b in zip(_parted(found), _parted(truth), strict=True)]


def _parted(tensors: list[Tensor]) -> list[Tensor]:
    """The gradient of m is a difference of sums as large as those of the gates: beside them."""
    *known, q, k, v, i, f, state, m = tensors
    gates = torch.cat([x.double().flatten() for x in (i, f, m)])
    return [*known, q, k, v, gates, state]


def _distance(found: Tensor, truth: Tensor) -> float:
    assert found.shape == truth.shape
    apart = torch.where(found.double() == truth, 0.0, (found.double() - truth).abs())
    finite = truth[truth.isfinite()]
    largest = finite.abs().max() if finite.numel() else truth.new_zeros(())
    return (apart.max() / largest.clamp_min(1.0)).item()


def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    launch = Kernel.launch

    def noting(self: Kernel, *arguments: Any) -> None:
        names.append(self.name)
        launch(self, *arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    return names


def test_a_sequence_takes_two_launches_and_a_token_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = launched(monkeypatch)
    compare(operands(1, 1, 17, 24, 16, F32), **VARIANTS["xlstm_large"])
    assert names[:2] == ["mlstm_states", "mlstm_outputs"]
    assert len(names) == 9
    names.clear()
    compare(operands(2, 1, 1, 16, 24, F32), **VARIANTS["xlstm"])
    assert names[0] == "mlstm_step"
    assert "mlstm_outputs" not in names


def test_chunks_longer_than_tiles() -> None:
    with tiles(16):
        compare(operands(1, 1, 23, 12, 20, F32), 20, **VARIANTS["xlstm"])


def test_both_sides_of_the_divisor_and_of_the_stabiliser() -> None:
    q, k, v, i, f, state, m = operands(1, 1, 20, 16, 24, F32)
    f[:, :, ::3] = -3.0
    given = [q, k, v, i - 1.0, f, state, m]
    # Values of 1 read the normalizer: h is of size 1 where |n . q| is what it is divided by.
    ones, norm = torch.ones_like(v[..., :1]), state[..., -1:].expand(1, 1, 16, 2)
    h, _, _ = mlstm(q, k, ones, i - 1.0, f, norm.contiguous(), m, eps=0.0)
    assert 0.1 < (h.abs() > 1 - 1e-5).double().mean() < 0.9
    compare(given, eps=0.1)


@pytest.mark.parametrize("options", [{}, pytest.param({"soft_cap": 15.0}, marks=pytest.mark.full)])
def test_padding_and_a_beginning_at_nothing(options: dict[str, float]) -> None:
    q, k, v, i, f, state, m = operands(2, 1, 12, 16, 16, F32)
    i[:, :, 3:7], f[:, :, 3:7] = -torch.inf, torch.inf
    f[1, 0, 9] = -torch.inf
    i[1, 0, :2], f[1, 0, :2] = -torch.inf, torch.inf
    m[1], state[1] = -torch.inf, 0.0
    given = [q, k, v, i, f, state, m]
    compare(given, 16, mlstm, **options)


@pytest.mark.parametrize(
    "dtype",
    [BF16, pytest.param(F16, marks=pytest.mark.full), pytest.param(F64, marks=pytest.mark.full)],
)
def test_other_dtypes(dtype: torch.dtype) -> None:
    compare(operands(1, 1, 20, 16, 24, dtype), 16)


def test_strided_operands_and_narrow_states() -> None:
    q, k, v, i, f, state, m = operands(2, 2, 18, 16, 24, BF16)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    gates = torch.stack([i, f], -1).permute(3, 0, 1, 2)
    given = [*strided, *gates, state.to(BF16), m.to(BF16)]
    h, last, after, _ = mlstm_forward(*given)
    wanted = mlstm(*(x.double() for x in given))
    assert (h.dtype, last.dtype, after.dtype) == (BF16, BF16, BF16)
    for found, truth in zip((h, last, after), wanted, strict=True):
        close(found, truth, "a narrow result")


def test_it_is_the_lowering_of_the_backend() -> None:
    assert registry.get("lowerings", "triton:xlstm.mlstm") is MLSTM
    assert set(KERNELS.kernels) <= set(all_kernels())
    assert set(KERNELS.replaces) == {"xlstm.mlstm", "xlstm.mlstm_backward"}
    b = Builder()
    shapes = [(1, 2, 3, 4)] * 3 + [(1, 2, 3)] * 2 + [(1, 2, 4, 5), (1, 2)]
    b.emit(Mlstm(), *(Value(TensorType("f32", shape)) for shape in shapes))
    assert TritonBackend().supports(b.ops[0], "cpu") is None


def test_finding_the_lowering_imports_nothing_heavy() -> None:
    program = """
import sys
from seqmix import registry
registry.get("lowerings", "triton:xlstm.mlstm")
print(sorted({"torch", "triton"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.full
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("S", [1, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize(("K", "V"), [(16, 24), (16, 64), (24, 16), (24, 64), (64, 16), (64, 24)])
def test_every_length(K: int, V: int, S: int, heads: int, past: bool) -> None:
    compare(operands(1, heads, S, K, V, F32, past), **VARIANTS["xlstm_large"])


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [5, 33, 100])
def test_every_chunk_and_variant(chunk: int, variant: str) -> None:
    with tiles(16):
        compare(operands(1, 1, 39, 12, 20, F32), chunk, **VARIANTS[variant])


@pytest.mark.full
def test_chunks_of_one_token() -> None:
    compare(operands(2, 1, 7, 12, 20, F32), 1, **VARIANTS["xlstm"])


@pytest.mark.full
@pytest.mark.parametrize("S", [1, 3])
def test_offsets_beyond_31_bits(S: int) -> None:
    # The memory is never touched, but for the two places read.
    far = torch.empty(2**31 + 4096, dtype=F16)
    x = far.as_strided((2, 1, S, 8), (2**31, 8, 8, 1))
    q, k, v, *rest = operands(2, 1, S, 8, 8, F16)
    x.copy_(k)
    for found, truth in zip(
        mlstm_forward(q, x, v, *rest)[:3],
        mlstm(*(t.double() for t in (q, k, v, *rest))),
        strict=True,
    ):
        close(found, truth, "of far keys", F16)


@pytest.mark.full
def test_weights_that_narrow_types_do_not_hold() -> None:
    q, k, v, i, f, state, m = operands(1, 1, 40, 16, 16, F16)
    i += 12.0
    given = [q, k, v, i, f, state, m]
    outputs = mlstm_forward(*given, soft_cap=15.0)
    grads = tuple(torch.ones_like(x) for x in outputs[:3])
    found = mlstm_backward(grads, tuple(given), outputs, (True,) * 7, soft_cap=15.0)
    assert all(x.isfinite().all() for x in (*outputs, *found))


@pytest.mark.full
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_any_choice_gives_the_same(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers provide memory by the default tiles: a choice must not need more of it."""

    def chosen(kind: str, space: list[Config], run: Callable[[Config], None]) -> Config:
        config = space[int(part * (len(space) - 1))]
        run(config)
        return config

    monkeypatch.setattr(kernel_module, "tuning", lambda: True)
    monkeypatch.setattr(kernel_module, "fastest", chosen)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: f"device {part}")
    compare(operands(1, 1, 19, 40, 24, F32), **VARIANTS["xlstm_large"])
    for kernel in KERNELS.kernels:
        kernel._chosen.clear()
