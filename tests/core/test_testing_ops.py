"""The conformance kit on ops: everything registered passes, and what is wrong is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seqmix import registry
from seqmix.cli import invoke
from seqmix.errors import ConfigError, IRError, PluginError
from seqmix.op import op as bind
from seqmix.testing import CheckReport, Overview, Row, check_all, check_op
from seqmix.testing.poison import poisoned, uses_fft
from seqmix_ir import ops
from seqmix_ir.defn import Decomposition, Example, OpDef, op
from seqmix_ir.ops.constants import constant
from seqmix_ir.ops.elementwise import Unary
from seqmix_ir.types import TensorType

BACKENDS = ("onnxruntime",)


@pytest.mark.parametrize("name", registry.op_table().names())
def test_every_registered_op_conforms(name: str) -> None:
    check_op(name, backends=BACKENDS).raise_for_failures()


@pytest.mark.full
@pytest.mark.parametrize("name", registry.op_table().names())
def test_every_registered_op_conforms_everywhere(name: str) -> None:
    check_op(name, "full").raise_for_failures()


class _Mixed(OpDef):
    """``(x + 1) * y`` and the sum of both; each subclass spoils one thing."""

    operands = ("x", "y")
    results = ("product", "total")

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        return x, x

    def evaluate(self, run: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (x + 1) * y, x + y

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": self.write}

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        x, y = op.values
        one = constant(b, 1.0, x.type.dtype)
        return b(ops.Mul(), b(ops.Add(), x, one), y), b(ops.Add(), x, y)

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls(), tuple(rng.standard_normal((2, 2, 5))))]


@op
class Sound(_Mixed):
    name = "test.sound"


@op
class WrongShape(_Mixed):
    name = "test.wrong_shape"

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        return x, x.with_shape((1, *x.shape))


@op
class WrongDtype(_Mixed):
    name = "test.wrong_dtype"

    def infer(self, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
        return x, x.with_dtype("i64")


@op
class WrongForm(_Mixed):
    name = "test.wrong_form"

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        product, total = super().write(b, op)
        return product, b(ops.Add(), total, constant(b, 1e-7, total.type.dtype))


@op
class SwappedForm(_Mixed):
    name = "test.swapped_form"

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        product, total = super().write(b, op)
        return total, product


@op
class NarrowForm(_Mixed):
    """Exact where every float is float64, rough in the dtypes of a machine."""

    name = "test.narrow_form"

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        product, total = super().write(b, op)
        rough = b(ops.Cast("bf16"), product)
        return b(ops.Cast(product.type.dtype), rough), total


@op
class TypedForm(_Mixed):
    name = "test.typed_form"

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        product, total = super().write(b, op)
        return product, b(ops.Unsqueeze((0,)), total)


@op
class EndlessForm(_Mixed):
    name = "test.endless_form"

    def write(self, b: Any, op: Any) -> tuple[Any, ...]:
        results: tuple[Any, ...] = b.emit(type(self)(), *op.operands)
        return results


@op
class NoForm(_Mixed):
    name = "test.no_form"

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {}


@op
class Raises(_Mixed):
    name = "test.raises"

    def evaluate(self, run: Any, x: Any, y: Any) -> tuple[Any, ...]:
        raise ZeroDivisionError("by design")


@op
class NoExamples(_Mixed):
    name = "test.no_examples"

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return ()


@op
class BrokenExamples(_Mixed):
    name = "test.broken_examples"

    @classmethod
    def examples(cls, rng: np.random.Generator) -> Sequence[Example]:
        return [Example(cls(), (rng.standard_normal(3),))]


@op
class Cubed(Unary):
    """A new pointwise op needs nothing but its meaning, here with a form that backends know."""

    name = "test.cubed"

    def evaluate(self, run: Any, x: NDArray[Any]) -> tuple[Any, ...]:
        return (x * x * x,)

    def decompositions(self) -> Mapping[str, Decomposition]:
        return {"direct": lambda b, op: (b(ops.Mul(), b(ops.Mul(), *op.values * 2), *op.values),)}


def check(cls: Any, **options: Any) -> CheckReport:
    return check_op(cls, **{"backends": BACKENDS, **options})


@pytest.mark.parametrize("cls", [Sound, Cubed], ids=lambda c: c.name)
def test_a_sound_op_passes_and_every_promise_is_tried(cls: Any) -> None:
    report = check(cls)
    report.raise_for_failures()
    assert {(row.check, row.where) for row in report.rows} == {
        ("types", "f32"),
        ("text round trip", "f32"),
        ("decomposition 'direct'", "judge"),
        ("decomposition 'direct', to primitives", "judge"),
        ("definition", "f32"),
        ("definition", "bf16"),
        ("decomposition 'direct'", "f32"),
        ("decomposition 'direct'", "bf16"),
        ("runs", "onnxruntime f32"),
    }
    assert report.notes == [f"op '{cls.name}' is not bound to torch"]


@pytest.mark.parametrize(
    ("cls", "broken", "text"),
    [
        (WrongShape, "types", r"its type f32\[1, 2, 5\] says \(1, 2, 5\)"),
        (WrongDtype, "types", "a result is float32, its type"),
        (WrongForm, "decomposition 'direct'", "total"),
        (SwappedForm, "decomposition 'direct'", "total"),
        (NarrowForm, "decomposition 'direct'", "product"),
        (TypedForm, "decomposition 'direct'", r"gives f32\[2, 5\], f32\[1, 2, 5\], expected"),
        (EndlessForm, "decomposition 'direct'", "does not come to an end"),
        (NoForm, "runs", "cannot run 'test.no_form'"),
        (Raises, "definition", "ZeroDivisionError: by design"),
        (NoExamples, "examples", r"give its class the classmethod examples\(cls, rng\)"),
        (BrokenExamples, "types", "takes 2 operands"),
    ],
    ids=lambda v: v.name if isinstance(v, type) else "",
)
def test_each_broken_promise_is_found(cls: Any, broken: str, text: str) -> None:
    report = check(cls)
    assert broken in {row.check for row in report.failures}
    with pytest.raises(
        AssertionError, match=rf"op '{cls.name}' does not conform:\n(.*\n)*.*{text}"
    ):
        report.raise_for_failures()


def kernel(x: Any, y: Any) -> Any:
    return (x + 1) * y, x + y


def derivative(grads: Any, operands: Any, outputs: Any, needs: Any) -> Any:
    x, y = operands
    return grads[0] * y + grads[1], grads[0] * (x + 1) + grads[1]


def wrong_derivative(grads: Any, operands: Any, outputs: Any, needs: Any) -> Any:
    x, y = operands
    return grads[0] * y + grads[1], grads[0] * x + grads[1]


def forgetful_kernel(x: Any, y: Any) -> Any:
    """Reads one row that nobody wrote, which is most often 0 and seldom noticed."""
    room = torch.empty(3, *x.shape, dtype=x.dtype)
    room[0], room[1] = (x + 1) * y, x + y
    return room[0] + 0 * room[2], room[1].clone()


def hasty_kernel(x: Any, y: Any) -> Any:
    return kernel(x, y)[0], (x + y).t().contiguous()


def impure_kernel(x: Any, y: Any) -> Any:
    out = kernel(x, y)
    x.add_(1)
    return out


@pytest.mark.parametrize(
    ("eager", "backward", "broken"),
    [
        (kernel, derivative, set()),
        (kernel, None, set()),
        (lambda x, y: kernel(y, x), None, {"torch kernel"}),
        (forgetful_kernel, derivative, {"torch kernel"}),
        (hasty_kernel, None, {"torch kernel", "torch fake kernel"}),
        (impure_kernel, None, {"torch kernel", "torch fake kernel"}),
        (kernel, wrong_derivative, {"torch gradients"}),
        (kernel, lambda grads, *rest: (grads[0], None), {"torch gradients"}),
    ],
)
def test_what_is_bound_to_torch_is_checked(eager: Any, backward: Any, broken: set[str]) -> None:
    count = next(_COUNTER)
    cls = op(type("Bound", (_Mixed,), {"name": f"test.bound{count}", "__doc__": "As above."}))
    bind(cls, eager=eager, backward=backward)
    report = check(cls)
    assert {row.check for row in report.failures} >= broken
    assert bool(broken) == bool(report.failures)
    every = {"torch kernel", "torch fake kernel", "torch gradients", "torch capture"}
    assert every <= {row.check for row in report.rows}


_COUNTER = iter(range(100))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="'fast' is unknown; known: quick, full"):
        check_op("add", "fast")
    with pytest.raises(IRError, match="unknown op 'atention'; did you mean 'attention'"):
        check_op("atention")
    with pytest.raises(PluginError, match="no backend 'absent'"):
        check_op("add", backends=["absent"])


def test_memory_that_nobody_wrote_is_nan_and_things_are_as_before_afterwards() -> None:
    with poisoned():
        assert torch.empty(3).isnan().all()
        with poisoned(False):
            assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert uses_fft(lambda: torch.fft.rfft(torch.ones(4)))
    assert not uses_fft(lambda: torch.ones(4) * 2)


def test_everything_is_checked_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str, *rest: Any, **options: Any) -> CheckReport:
        if name == "div":
            raise IRError("div is broken")
        return CheckReport(name, [Row("runs", "here", 1e-6, 2e-5)], ["a note"])

    monkeypatch.setattr("seqmix.testing.everything.check_op", fake)
    monkeypatch.setattr("seqmix.testing.everything.check_mixer", fake)
    seen: list[str] = []
    overview = check_all(watch=seen.append)
    assert {"mixer 'mlp'", "op 'div'", "op 'top_k'"} <= set(seen)
    assert overview.table().row_count == len(seen)
    assert not overview.ok
    assert overview.notes == ["a note"]
    with pytest.raises(AssertionError, match=r"^op 'div' does not conform:\n.*div is broken.*$"):
        overview.raise_for_failures()
    good = Overview([CheckReport("x", [Row("runs", "here", 0.0, 0.0)])])
    good.raise_for_failures()
    assert json.loads(good.to_json())["ok"]


def test_the_command_finds_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "rms_norm", "-b", "onnxruntime", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["subject"] == "op 'rms_norm'"
    # There is a mixer of this name too.
    assert invoke(["check", "op:attention", "-b", "reference", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["subject"] == "op 'attention'"
    assert invoke(["check", "rms_nrom"]) == 2
    assert "no op 'rms_nrom'; did you mean 'rms_norm'?" in capsys.readouterr().err
