"""Binding an op of the IR to torch: schema, fake kernel, autograd, replacement."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, Literal

import pytest
import torch
from torch import nn

from seqmix.capture import capture_function
from seqmix.errors import PluginError
from seqmix.op import bound_ops, op, replace
from seqmix.ops import attention
from seqmix_ir import IRError, OpDef, TensorType
from seqmix_ir import op as ir_op
from seqmix_ir.dims import ceildiv


@ir_op
class Blocks(OpDef):
    """Sums of blocks of the last axis, the last one padded."""

    name = "blocks"
    operands = ("x", "bias?")
    results = ("y",)
    size: int
    scale: float = 2.0
    mode: Literal["sum", "mean"] = "sum"
    extra: tuple[int, ...] = (1, 2)
    flag: bool = False

    def infer(self, x, bias):
        return (x.with_shape((*x.shape[:-1], ceildiv(x.shape[-1], self.size))),)


def blocks(x, bias, *, size, scale=2.0, mode="sum", extra=(1, 2), flag=False):
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
    y = padded.unflatten(-1, (-1, size)).sum(-1) * scale
    return y if bias is None else y + bias


def new_blocks(**options):
    name = f"Blocks{uuid.uuid4().hex[:8]}"
    cls = ir_op(type(name, (Blocks,), {"name": name.lower(), "__annotations__": {}}))
    return op(cls, eager=blocks, **options)


def test_the_schema_follows_the_op():
    bound = new_blocks()
    assert str(bound.overload._schema) == (
        f"seqmix::{bound.name}(Tensor x, Tensor? bias, *, int size, float scale=2., "
        'str mode="sum", int[] extra=[1, 2], bool flag=False) -> Tensor'
    )


def test_the_fake_kernel_is_infer_on_symbolic_sizes():
    bound = new_blocks()
    module = nn.Module()
    module.forward = lambda x: bound(x, None, size=3)
    length = torch.export.Dim("S", min=4)
    program = torch.export.export(
        module, (torch.randn(2, 7),), dynamic_shapes=({1: length},), strict=False
    )
    (node,) = (n for n in program.graph.nodes if "blocks" in str(n.target))
    assert "//3" in str(node.meta["val"].shape[1]).replace(" ", "")
    x = torch.randn(2, 11)
    torch.testing.assert_close(program.module()(x), blocks(x, None, size=3))


def test_capture_finds_the_op_by_its_torch_name():
    bound = new_blocks()

    class Calls(nn.Module):
        def forward(self, x):
            return bound(x, None, size=3, extra=(4,))

    captured = capture_function(
        Calls(), [torch.randn(2, 7)], input_names=["x"], output_names=["y"], dynamic=[("B", "S")]
    )
    graph = captured.module.graph("forward")
    (found,) = graph.block.ops
    assert found.defn == bound.defn(size=3, extra=(4,))
    assert str(graph.block.results[0].type) == "f32[B, ceildiv(S, 3)]"


def test_a_second_registration_is_refused():
    bound = new_blocks()
    with pytest.raises(PluginError, match="already bound") as error:
        op(bound.defn, eager=blocks)
    assert "test_op.py" in str(error.value)


def test_an_op_with_a_region_is_refused():
    from seqmix_ir.ops import Scan

    with pytest.raises(PluginError, match=r"use seqmix\.scan"):
        op(Scan, eager=lambda *x: x)


def test_an_attribute_without_schema_is_refused():
    @ir_op
    class Odd(OpDef):
        name = "odd_attribute"
        operands = ("x",)
        results = ("y",)
        type: TensorType

    with pytest.raises(PluginError, match="attribute 'type"):
        op(Odd, eager=lambda x: x.clone())


def test_saved_tensors_are_dropped_from_calls_and_reach_backward():
    seen = []

    def eager(x, bias, *, size, **options):
        return x.repeat_interleave(1) * size, x.exp()

    def backward(grads, operands, outputs, needs, *, size, **options):
        seen.append((len(operands), len(outputs), needs, size))
        return [grads[0] * size * outputs[1] / outputs[1], None]

    cls: Any = ir_op(type("Saves", (Blocks,), {"name": "saves_exp", "__annotations__": {}}))
    cls.infer = lambda self, x, bias: (x,)
    bound = op(cls, eager=eager, backward=backward, saved={"exp": lambda defn, x, bias: x})
    x = torch.randn(4, requires_grad=True)
    y = bound(x, None, size=3)
    assert isinstance(y, torch.Tensor)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 3.0))
    assert seen == [(2, 2, (True, False), 3)]
    torch.library.opcheck(bound.overload, (x, None), {"size": 2})


def test_a_missing_gradient_is_an_error_not_a_zero():
    bound = new_blocks(backward=lambda *a, **k: [None, None])
    x = torch.randn(2, 6, requires_grad=True)
    with pytest.raises(PluginError, match="no gradient for x"):
        bound(x, None, size=3).sum().backward()


def test_a_second_derivative_is_an_error():
    q = torch.randn(1, 1, 2, 3, requires_grad=True)
    positions = torch.arange(2).unsqueeze(0)
    y = attention(q, q, q, positions, positions).sum()
    (grad,) = torch.autograd.grad(y, q, create_graph=True)
    with pytest.raises(PluginError, match="no second derivative"):
        grad.sum().backward()


def test_a_device_kernel_is_replaced_once_and_keeps_its_gradient():
    bound = new_blocks(
        backward=lambda grads, operands, *a, **k: [torch.ones_like(operands[0]), None]
    )
    replace(bound.name, "cpu", lambda x, bias, *, size, **k: blocks(x, bias, size=size) + 100)
    x = torch.zeros(2, 6, requires_grad=True)
    y = bound(x, None, size=3)
    assert torch.equal(y, torch.full((2, 2), 100.0))
    with torch.no_grad():
        assert torch.equal(bound(x, None, size=3), y)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(2, 6))
    with pytest.raises(PluginError, match="already replaced"):
        replace(bound.name, "cpu", blocks)


def test_a_backward_kernel_is_replaced():
    bound = new_blocks(backward=lambda grads, operands, *a, **k: [operands[0] * 0, None])
    replace(
        f"{bound.name}_backward",
        "cpu",
        lambda grads, operands, *a, **k: [torch.full_like(operands[0], 7.0), None],
    )
    x = torch.zeros(2, 6, requires_grad=True)
    bound(x, None, size=3).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 6), 7.0))


def test_replacing_what_is_not_there_is_refused():
    with pytest.raises(PluginError, match="no torch op 'atention' to replace; did you mean"):
        replace("atention", "cpu", blocks)
    with pytest.raises(PluginError, match="no device 'tpu'"):
        replace("attention", "tpu", blocks)


def test_wrong_shapes_are_an_error_when_traced():
    x = torch.randn(2, 3, 4, 5)

    class Wrong(nn.Module):
        def forward(self, x):
            return attention(x, x[:, :2], x[:, :2], x[:, 0, :, 0].long(), x[:, 0, :, 0].long())

    with pytest.raises(IRError, match="must be a multiple"):
        torch.export.export(Wrong(), (x,), strict=False)


def test_compiled_code_keeps_the_op():
    positions = torch.arange(5).unsqueeze(0)

    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def run(q):
        return attention(q, q, q, positions, positions) * 2

    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    torch.testing.assert_close(run(q), attention(q, q, q, positions, positions) * 2)


def test_bound_ops_lists_the_shared_ones():
    assert {"attention", "rotary", "causal_conv1d", "clip_gradient"} <= set(bound_ops())
    assert dataclasses.is_dataclass(bound_ops()["attention"].defn)
