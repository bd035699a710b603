"""check_mixer: the laws in torch, then the same mixer captured and run on every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqmix import registry
from seqmix.backend import Backend, Executable, Program
from seqmix.capture import capture_function
from seqmix.compile import compile
from seqmix.config import BlockConfig, Kind, ModelConfig, build_config
from seqmix.errors import BackendError, CaptureError, ConfigError, IRError, PluginError
from seqmix.mixer import SequenceMixer
from seqmix.state import StateSpec
from seqmix.testing.inputs import call, distance, fresh_state, random_input
from seqmix.testing.laws import check_laws
from seqmix.testing.report import CheckReport, Row
from seqmix.testing.tolerances import TOLERANCES
from seqmix.weights import Weights
from seqmix_ir.graph import DimInfo
from seqmix_ir.text import parse, show

__all__ = ["LENGTHS", "check_mixer"]

LENGTHS = ((1, 1, 0), (1, 1, 1), (2, 7, 0), (1, 9, 130), (3, 65, 1))
"""(batch, sequence, past) of the backend runs; none of them is traced."""

_LAWS = {"quick": (1, 2, 9), "full": (1, 2, 9, 63, 65)}
_WIDTH = 24


def check_mixer(
    mixer: str | type[SequenceMixer],
    options: Mapping[str, Any] | None = None,
    *,
    width: int = _WIDTH,
    profile: str = "quick",
    backends: Sequence[str] | None = None,
) -> CheckReport:
    """Check one mixer, by name or class: laws, gradients, capture, text, and every backend.

    Without ``options`` every one of the mixer's ``examples()`` is checked. ``backends`` defaults to
    all that are installed and available; "torch" stands for the mixer itself in float32. Raises
    ConfigError for an unknown profile; what the mixer does wrong is in the report.
    """
    if profile not in _LAWS:
        raise ConfigError(f"profile {profile!r} is unknown; known: {', '.join(_LAWS)}")
    cls = (
        cast(type[SequenceMixer], registry.get("mixers", mixer))
        if isinstance(mixer, str)
        else mixer
    )
    name = mixer if isinstance(mixer, str) else mixer.__name__
    report = CheckReport(f"mixer '{name}'")
    for example in [dict(options)] if options is not None else cls.examples():
        subject = _Subject(cls, name, example, width)
        prefix = "" if len(example) == 0 else f"{_short(example)} "
        rows = [*check_laws(subject.build(torch.float64), width, _LAWS[profile])]
        rows += _check_backends(subject, backends, report.notes)
        report.rows += [_prefixed(prefix, row) for row in rows]
    return report


class _Subject:
    """A mixer class with one configuration."""

    def __init__(
        self, cls: type[SequenceMixer], name: str, options: dict[str, Any], width: int
    ) -> None:
        self.name = name
        self.width = width
        self._cls = cls
        self._options = build_config(cls.Config, options, f"mixer '{name}'")
        step: Kind | list[Kind] = Kind(kind=name, **options)
        self.config = ModelConfig(
            name=name,
            vocab_size=1,
            width=width,
            context_length=1024,
            blocks=[BlockConfig(steps=[step])],
        )

    def build(self, dtype: torch.dtype) -> SequenceMixer:
        """The mixer with weights that are the same every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            mixer = self._cls(self._options, self.width)  # type: ignore[call-arg]  # by convention
        for parameter in mixer.parameters():
            _stir(parameter)
        return mixer.to(dtype).eval()


def _stir(parameter: nn.Parameter) -> None:
    """Move weights off their initial zeros and ones, so that each of them matters."""
    generator = torch.Generator().manual_seed(parameter.numel())
    noise = torch.randn(parameter.shape, generator=generator)
    with torch.no_grad():
        parameter.add_(0.3 * noise.to(parameter.dtype))


class Alone(nn.Module):
    """A mixer with its state as separate arguments and results, for capture."""

    def __init__(self, mixer: SequenceMixer) -> None:
        """Keep the order of the mixer's state."""
        super().__init__()
        self.mixer = mixer
        self._keys = list(mixer.state_spec())

    def forward(self, x: Tensor, positions: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """``(y, *state after)``."""
        given = dict(zip(self._keys, state, strict=True))
        y, after = call(self.mixer, x, positions, given)
        return (y, *(after[key] for key in self._keys))


def _capture(subject: _Subject, mixer: SequenceMixer) -> Program:
    specs = mixer.state_spec()
    states = [f"state.0.{key}" for key in specs]
    example = fresh_state_with_past(mixer, 2, 3, torch.float32)
    captured = capture_function(
        Alone(mixer),
        [
            random_input(2, 5, subject.width, torch.float32),
            torch.arange(3, 8).expand(2, -1),
            *example,
        ],
        input_names=["x", "positions", *states],
        output_names=["y", *states],
        dynamic=[("B", "S", None), ("B", "S"), *(_axes(s) for s in specs.values())],
        dims=[DimInfo("B", 1), DimInfo("S", 1), *_past_dims(specs)],
        name=subject.name.replace("-", "_"),
        prefix="mixer.",
    )
    return Program(captured.module, Weights.of_tensors(captured.weights), subject.config)


def fresh_state_with_past(
    mixer: SequenceMixer, batch: int, past: int, dtype: torch.dtype
) -> list[Tensor]:
    """Zeros in the shape of a state after ``past`` tokens."""
    fresh = fresh_state(mixer, batch, dtype)
    return [
        torch.zeros(spec.shape(batch, past), dtype=fresh[key].dtype)
        for key, spec in mixer.state_spec().items()
    ]


def _axes(spec: StateSpec) -> tuple[str | None, ...]:
    return tuple(axis if isinstance(axis, str) else None for axis in spec.axes)


def _past_dims(specs: Mapping[str, StateSpec]) -> list[DimInfo]:
    return [DimInfo("P", 0)] if any(spec.grows for spec in specs.values()) else []


def _check_backends(
    subject: _Subject, names: Sequence[str] | None, notes: list[str]
) -> Iterator[Row]:
    mixer = subject.build(torch.float32)
    try:
        program = _capture(subject, mixer)
    except (CaptureError, IRError) as error:
        yield Row("capture", "torch.export", 1.0, 0.0, str(error))
        return
    text = show(program.module)
    again = show(parse(text, registry.op_table()))
    yield Row("text round trip", "ir", 0.0 if again == text else 1.0, 0.0)
    judge = compile(program, "reference", options={"judge": True}, cache=False)
    wanted = registry.names("backends") if names is None else names
    for name in wanted:
        try:
            runner = _runner(name, mixer, program)
        except (BackendError, PluginError) as error:
            if names is not None:
                raise
            notes.append(f"backend '{name}' was not checked: {error}")
            continue
        except IRError as error:
            yield Row("compiles", name, 1.0, 0.0, str(error))
            continue
        yield from _compare(subject, mixer, name, runner, judge)


def _runner(name: str, mixer: SequenceMixer, program: Program) -> Executable | Alone:
    if name == "torch":
        return Alone(mixer)
    backend = cast(type[Backend], registry.get("backends", name))()
    return compile(program, backend, cache=False)


def _compare(
    subject: _Subject,
    mixer: SequenceMixer,
    name: str,
    runner: Executable | Alone,
    judge: Executable,
) -> Iterator[Row]:
    """Each length from a state that the judge computed, against the judge."""
    keys = [f"state.0.{key}" for key in mixer.state_spec()]
    for batch, length, past in LENGTHS:
        x = random_input(batch, past + length, subject.width, torch.float32, seed=6)
        positions = torch.arange(past + length).expand(batch, -1)
        state = {f"state.0.{k}": t for k, t in fresh_state(mixer, batch, torch.float32).items()}
        if past:
            out = judge.run("forward", _inputs(x[:, :past], positions[:, :past], state))
            state = {k: out[k].to(state[k].dtype) for k in keys}
        inputs = _inputs(x[:, past:], positions[:, past:], state)
        expected, found = judge.run("forward", inputs), _run(runner, inputs, keys)
        entry = "step" if length == 1 else "prefill with state" if past else "prefill"
        detail = f"B={batch} S={length} P={past}"
        error = max(distance(found[k], expected[k]) for k in ("y", *keys))
        yield Row(entry, f"{name} f32", error, TOLERANCES["f32"], detail)


def _inputs(x: Tensor, positions: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"x": x, "positions": positions.contiguous(), **state}


def _run(
    runner: Executable | Alone, inputs: dict[str, Tensor], keys: list[str]
) -> dict[str, Tensor]:
    if isinstance(runner, Executable):
        return runner.run("forward", inputs)
    with torch.no_grad():
        out = runner(inputs["x"], inputs["positions"], *(inputs[key] for key in keys))
    return dict(zip(["y", *keys], out, strict=True))


def _short(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def _prefixed(prefix: str, row: Row) -> Row:
    return Row(row.check, f"{prefix}{row.where}", row.error, row.tolerance, row.detail)
