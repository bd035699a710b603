"""Who takes part in ``backends.py``, and with what.

M rows, K terms, N columns of a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from decode import bare_matmuls, prompt_ids
from torch import Tensor, nn
from torch.nn import functional

import seqmix
from seqmix.backend import Program
from seqmix.capture import capture_function
from seqmix.config import BlockConfig, Kind, ModelConfig
from seqmix.model import Model, flatten_states, initial_states, unflatten_states
from seqmix.weights import Weights

__all__ = [
    "cached_products",
    "lstm_layers",
    "many_products",
    "smollm2_decode",
    "smollm2_prefill",
]

Work = Callable[[], Any]


class _Products(nn.Module):
    """The products of each input with each weight that has its place."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Products of the inputs by their place; one weight serves all of them."""
        found = [self.weights[i % len(self.weights)] for i in range(len(inputs))]
        return tuple(functional.linear(x, w) for x, w in zip(inputs, found, strict=True))


def many_products(M: int, K: int, N: int, count: int, threads: int) -> dict[str, Work]:
    """As many products as there are weights."""
    return _products(M, K, N, (count, count), threads)


def cached_products(M: int, K: int, N: int, count: int, threads: int) -> dict[str, Work]:
    """Products with one and the same weight."""
    return _products(M, K, N, (count, 1), threads)


def _products(M: int, K: int, N: int, counts: tuple[int, int], threads: int) -> dict[str, Work]:
    count, matrices = counts
    weights = [torch.randn(N, K) / K**0.5 for _ in range(matrices)]
    inputs = [torch.randn(M, K) for _ in range(count)]
    model = _Products(weights).eval()
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    compiled = _compiled(model, list(given), K)
    session, feeds = _session(weights, inputs, threads)
    wanted = model(*inputs)
    for x, y in zip(compiled.run("forward", given).values(), wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    return {
        "torch": lambda: model(*inputs),
        "onnxruntime": lambda: session.run(None, feeds),
        "tvm": lambda: compiled.run("forward", given),
    }


def _compiled(model: nn.Module, names: list[str], K: int) -> Any:
    """The products for any number of rows, on the tvm backend."""
    captured = capture_function(
        model,
        [torch.randn(3, K) for _ in names],
        input_names=names,
        output_names=[f"y{i}" for i in range(len(names))],
        dynamic=[("S", None)] * len(names),
    )
    step = Kind.model_validate({"kind": "mlp", "hidden": 8})
    config = ModelConfig(
        vocab_size=2, width=8, context_length=2, blocks=[BlockConfig(steps=[step])]
    )
    program = Program(captured.module, Weights.of_tensors(captured.weights), config)
    return seqmix.compile(program, "tvm", cache=False)


def _session(weights: list[Tensor], inputs: list[Tensor], threads: int) -> tuple[Any, Any]:
    """ONNX Runtime's MatMuls over the same numbers."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    K, N = weights[0].shape[1], weights[0].shape[0]
    stored = [
        numpy_helper.from_array(np.ascontiguousarray(w.numpy().T), f"w{i}")
        for i, w in enumerate(weights)
    ]
    places = range(len(inputs))
    nodes = [
        helper.make_node("MatMul", [f"x{i}", f"w{i % len(weights)}"], [f"y{i}"]) for i in places
    ]
    shapes = {"x": K, "y": N}
    values = {
        letter: [
            helper.make_tensor_value_info(f"{letter}{i}", TensorProto.FLOAT, [None, size])
            for i in places
        ]
        for letter, size in shapes.items()
    }
    graph = helper.make_graph(nodes, "products", values["x"], values["y"], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Spinning threads would disturb the contestant whose turn is next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    data = onnx.ModelProto.SerializeToString(proto)
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session, {f"x{i}": x.numpy() for i, x in enumerate(inputs)}


def smollm2_decode(past: int, threads: int) -> dict[str, Work]:
    """One token at a past, each backend from the same states."""
    model, ids, executables = _smollm2(past, threads, ("tvm int8",))
    prompt, positions = torch.tensor([ids[:past]]), torch.arange(past).unsqueeze(0)
    token, here = torch.tensor([[ids[past]]]), torch.tensor([[past]])
    empty = unflatten_states(model, initial_states(model, 1))
    _, after = model(prompt, positions, empty)
    flat = flatten_states(model, after)

    def step(executable: Any) -> Work:
        return lambda: executable(token, here, flat)

    return {
        "floor": bare_matmuls(model),
        "torch": lambda: model(token, here, after),
        **{name: step(executable) for name, executable in executables.items()},
    }


def smollm2_prefill(length: int, threads: int) -> dict[str, Work]:
    """A whole prompt from an empty state."""
    model, ids, executables = _smollm2(length, threads, ())
    prompt, positions = torch.tensor([ids[:length]]), torch.arange(length).unsqueeze(0)
    empty = unflatten_states(model, initial_states(model, 1))

    def read(executable: Any) -> Work:
        return lambda: executable(prompt, positions)

    return {
        "torch": lambda: model(prompt, positions, empty),
        **{name: read(executable) for name, executable in executables.items()},
    }


def _smollm2(past: int, threads: int, more: tuple[str, ...]) -> tuple[Any, list[int], Any]:
    """The model, tokens of a text, and the model on each backend."""
    from seqmix.checkpoint import resolve

    checkpoint = resolve("smollm2")
    model = Model.from_checkpoint(checkpoint)
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "onnxruntime": ("onnxruntime", {"threads": threads}),
        "tvm": ("tvm", {}),
        "tvm int8": ("tvm", {"weights": "int8"}),
    }
    executables = {
        name: seqmix.compile(model, backend, options=chosen, cache=False)
        for name, (backend, chosen) in options.items()
        if name in ("onnxruntime", "tvm", *more)
    }
    return model, prompt_ids(checkpoint, past + 1), executables


def lstm_layers(model: Any, length: int) -> Work:
    """The LSTM of torch of the width and the depth of a model."""
    width, depth = model.config.width, len(model.config.blocks)
    layers = nn.LSTM(width, width, depth, batch_first=True).eval()
    x = torch.randn(1, length, width)
    return lambda: layers(x)
