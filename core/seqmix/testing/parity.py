"""One mixer on every backend: captured alone, compiled, and compared with the float64 judge.

B batch, S sequence, P past, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from seqmix import registry
from seqmix.backend import Backend, Executable, Program
from seqmix.capture import capture_function
from seqmix.compile import compile
from seqmix.config import ModelConfig
from seqmix.dtypes import torch_dtype
from seqmix.errors import BackendError, CaptureError, IRError, PluginError
from seqmix.mixer import SequenceMixer
from seqmix.state import StateSpec
from seqmix.testing.inputs import call, distance, fresh_state, random_input, with_padding
from seqmix.testing.report import Row
from seqmix.testing.tolerances import TOLERANCES
from seqmix.weights import Weights
from seqmix_ir.graph import DimInfo
from seqmix_ir.text import parse, show

__all__ = ["LENGTHS", "check_parity"]

LENGTHS = ((1, 1, 0), (1, 1, 1), (2, 7, 0), (1, 9, 130), (3, 65, 1))
"""(batch, sequence, past) of the backend runs; none of them is traced."""

_PADDED = ((False, True, True, True), (True, True, True, False), (True, False, True, True))
"""Places of the tokens in the three rows of the padded run."""
_PADDED_PAST = 4


def check_parity(
    mixer: SequenceMixer,
    config: ModelConfig,
    dtype: str,
    backends: Sequence[str] | None,
    notes: list[str],
) -> Iterator[Row]:
    """Capture, text form, and every backend, for a mixer whose weights are of ``dtype``.

    ``backends`` are wanted: BackendError when one is not available. With None those that are not
    become ``notes``, and so does a backend that does not know a narrow ``dtype``.
    """
    subject = _Subject(mixer, config, dtype)
    try:
        program = _capture(subject)
    except (CaptureError, IRError) as error:
        yield Row("capture", dtype, 1.0, 0.0, str(error))
        return
    yield Row("capture", dtype, 0.0, 0.0)
    text = show(program.module)
    again = show(parse(text, registry.op_table()))
    yield Row("text round trip", dtype, 0.0 if again == text else 1.0, 0.0)
    judge = compile(program, "reference", options={"judge": True}, cache=False)
    cases = [_Case(subject, judge, *sizes) for sizes in LENGTHS]
    cases.append(_Case(subject, judge, len(_PADDED), len(_PADDED[0]), _PADDED_PAST, padded=True))
    for name in registry.names("backends") if backends is None else backends:
        try:
            runner = _runner(name, mixer, program)
        except (BackendError, PluginError) as error:
            if backends is not None:
                raise
            notes.append(f"backend '{name}' was not checked: {error}")
        except IRError as error:
            if dtype == "f32":
                yield Row("compiles", f"{name} {dtype}", 1.0, 0.0, str(error))
            else:
                notes.append(f"backend '{name}' was not checked in {dtype}: {error}")
        else:
            yield from (case.compare(name, runner) for case in cases)


@dataclass(frozen=True)
class _Subject:
    """A mixer, the configuration that stands for its model, and its dtype."""

    mixer: SequenceMixer
    config: ModelConfig
    dtype: str

    @property
    def specs(self) -> dict[str, StateSpec]:
        """The mixer's state by the names of the graph."""
        return {f"state.0.{key}": spec for key, spec in self.mixer.state_spec().items()}

    def fresh(self, batch: int) -> dict[str, Tensor]:
        """The state before the first token, by the names of the graph."""
        state = fresh_state(self.mixer, batch, torch_dtype(self.dtype))
        return {f"state.0.{key}": tensor for key, tensor in state.items()}

    def input(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """Random ``[B, S, D]``."""
        return random_input(batch, length, self.config.width, torch_dtype(self.dtype), seed)


class _Case:
    """One call of given sizes, from a state that the judge computed."""

    def __init__(
        self,
        subject: _Subject,
        judge: Executable,
        batch: int,
        length: int,
        past: int,
        padded: bool = False,
    ) -> None:
        """Let the judge compute the state before, and what is expected."""
        self.dtype = subject.dtype
        self.detail = f"B={batch} S={length} P={past}{' padded' if padded else ''}"
        self.entry = "step" if length == 1 else "prefill with state" if past else "prefill"
        x, state = subject.input(batch, past + length, seed=6), subject.fresh(batch)
        positions = torch.arange(past + length).expand(batch, -1)
        if past:
            out = judge.run("forward", _inputs(x[:, :past], positions[:, :past], state))
            state = {name: out[name].to(tensor.dtype) for name, tensor in state.items()}
        new, places = x[:, past:], positions[:, past:]
        if padded:
            new, places, _ = with_padding(new[:, : sum(_PADDED[0])], _PADDED, start=past)
        self.inputs = _inputs(new, places, state)
        self.expected = judge.run("forward", self.inputs)

    def compare(self, name: str, runner: Executable | _Alone) -> Row:
        """The distance of a backend's results from the judge's."""
        found = runner.run("forward", self.inputs)
        error = distance(found, self.expected)
        return Row(self.entry, f"{name} {self.dtype}", error, TOLERANCES[self.dtype], self.detail)


class _Alone(nn.Module):
    """A mixer with its state as separate arguments and results; runs like an executable."""

    def __init__(self, mixer: SequenceMixer) -> None:
        super().__init__()
        self.mixer = mixer
        self._keys = list(mixer.state_spec())

    def forward(self, x: Tensor, positions: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """``(y, *state after)``."""
        given = dict(zip(self._keys, state, strict=True))
        y, after = call(self.mixer, x, positions, given)
        return (y, *(after[key] for key in self._keys))

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Results by name, as :meth:`~seqmix.backend.Executable.run` has it."""
        names = [f"state.0.{key}" for key in self._keys]
        with torch.no_grad():
            out = self(inputs["x"], inputs["positions"], *(inputs[name] for name in names))
        return dict(zip(["y", *names], out, strict=True))


def _capture(subject: _Subject) -> Program:
    """The mixer as a program with the inputs x, positions and its state."""
    specs = subject.specs
    fresh = subject.fresh(2)
    example = [torch.zeros(s.shape(2, 3), dtype=fresh[name].dtype) for name, s in specs.items()]
    past = [DimInfo("P", 0)] if any(spec.grows for spec in specs.values()) else []
    captured = capture_function(
        _Alone(subject.mixer),
        [subject.input(2, 5), torch.arange(3, 8).repeat(2, 1), *example],
        input_names=["x", "positions", *specs],
        output_names=["y", *specs],
        dynamic=[("B", "S", None), ("B", "S"), *(_axes(spec) for spec in specs.values())],
        dims=[DimInfo("B", 1), DimInfo("S", 1), *past],
        name=subject.config.name.replace("-", "_"),
        prefix="mixer.",
    )
    return Program(captured.module, Weights.of_tensors(captured.weights), subject.config)


def _axes(spec: StateSpec) -> tuple[str | None, ...]:
    return tuple(axis if isinstance(axis, str) else None for axis in spec.axes)


def _runner(name: str, mixer: SequenceMixer, program: Program) -> Executable | _Alone:
    """The mixer itself for "torch", which runs models only; else the program, compiled."""
    if name == "torch":
        return _Alone(mixer)
    backend = cast(type[Backend], registry.get("backends", name))()
    return compile(program, backend, cache=False)


def _inputs(x: Tensor, positions: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"x": x, "positions": positions.contiguous(), **state}
