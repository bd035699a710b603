"""torch.compile on a backend of seqmix: ``torch.compile(model, backend="seqmix-onnxruntime")``.

torch finds it by the entry-point group ``torch_dynamo_backends``. Whatever the name of a backend,
``seqmix.dynamo:NAME`` is what torch calls, so a package with a backend needs that one line.
Forward only. Weights are compiled in; when one of them has changed, the graph is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from seqmix import registry
from seqmix.dynamo_graph import Signature, program_of_graph
from seqmix.errors import BackendError, CaptureError, did_you_mean

__all__ = ["compiler"]

Compiler: TypeAlias = "Callable[[fx.GraphModule, Sequence[Any]], Callable[..., tuple[Any, ...]]]"

_MOST = 16
"""Compilations of one graph that is not the same for all sizes and numbers."""


@cache
def compiler(backend: str) -> Compiler:
    """What torch.compile calls with every graph, for a backend by name."""

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _Compiled(backend, graph)

    compile_graph.__name__ = f"seqmix_{backend}"
    return compile_graph


def __getattr__(name: str) -> Compiler:
    """The compiler of a backend, as an entry point names it."""
    known = registry.names("backends")
    if name not in known:
        near = "" if name.startswith("_") else did_you_mean(name, known)
        raise AttributeError(f"module 'seqmix.dynamo': there is no backend '{name}'{near}")
    return compiler(name)


class _Compiled:
    """A graph of torch; it is compiled at the first call, when the weights are at hand.

    What torch has fixed is fixed here too. Sizes that torch lets vary do so in one compilation,
    unless the graph cannot be captured like that: then every new size is a compilation.
    """

    def __init__(self, backend: str, graph: fx.GraphModule) -> None:
        self._backend = backend
        self._graph = graph
        self._signature = Signature.of(graph)
        self._varies = self._signature.varies
        self._made: dict[tuple[Any, ...], _Run] = {}

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The outputs of the graph, as torch expects them."""
        _refuse_gradients(self._backend, args)
        key = self._key(args)
        found = self._made.get(key)
        if found is None or not found.fits(args):
            found = self._made[key] = self._compile(args)
        return found(args)

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What a compilation is for: numbers, and sizes where they cannot vary."""
        numbers = self._signature.numbers(args)
        return numbers if self._varies else (*numbers, *self._signature.shapes(args))

    def _compile(self, args: Sequence[Any]) -> _Run:
        self._refuse_too_many(args)
        if self._varies:
            try:
                return self._compiled(args, varying=True)
            except CaptureError:
                # Whatever is wrong with it for good is said in the next attempt.
                self._varies = False
                found = self._compiled(args, varying=False)
                self._made[self._key(args)] = found
                return found
        return self._compiled(args, varying=False)

    def _compiled(self, args: Sequence[Any], *, varying: bool) -> _Run:
        from seqmix.compile import compile

        program = program_of_graph(self._graph, self._signature, args, varying=varying)
        executable = compile(program, self._backend)
        weights = [(i, args[i], _version(args[i])) for i in self._signature.weights]
        return _Run(executable, self._signature, weights)

    def _refuse_too_many(self, args: Sequence[Any]) -> None:
        if self._key(args) in self._made or len(self._made) < _MOST:
            return
        raise BackendError(
            f"torch.compile with 'seqmix-{self._backend}': a graph was compiled for {_MOST} "
            "different sizes or numbers, as it is not the same for all of them; pass numbers that "
            "change as tensors, and keep sizes out of Python's 'if' and 'for'"
        )


@dataclass
class _Run:
    """One compilation, and the weights that it was made of."""

    executable: Any
    signature: Signature
    weights: list[tuple[int, Tensor, Any]]

    def fits(self, args: Sequence[Any]) -> bool:
        """Whether the weights are what they were."""
        return all(args[i] is kept and _version(kept) == seen for i, kept, seen in self.weights)

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        inputs = {name: args[i].detach().contiguous() for name, i in self.signature.tensors.items()}
        return self.signature.outputs_of(self.executable.run("forward", inputs), args)


def _version(weight: Tensor) -> tuple[int, int]:
    """What changes when a weight is written to, or gets other memory."""
    return (0 if weight.is_inference() else weight._version, weight.data_ptr())


def _refuse_gradients(backend: str, args: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    if any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        raise BackendError(
            f"torch.compile with 'seqmix-{backend}' is for inference, and gradients are wanted "
            "here; call the model within torch.no_grad() or torch.inference_mode(), or train it "
            "without this backend"
        )
