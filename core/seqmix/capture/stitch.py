"""Trace one branch of each structure; write the others as copies of its ops.

torch.export takes a quarter of a second per branch, and most models repeat a few branches. The
traced model runs each template between two marks, on the same input, and then one mark that stands
for all the branches; the lowering puts the copies there, each with its own weights and states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from seqmix.capture.entries import WeightsOf
from seqmix.capture.marks import BEGIN, END, RESIDUAL
from seqmix.capture.structure import same_structure
from seqmix.capture.templates import Template, write_template
from seqmix.errors import CaptureError
from seqmix_ir.builder import Builder
from seqmix_ir.graph import Op, Value
from seqmix_ir.ops import Add
from seqmix_ir.types import Loc

__all__ = ["Place", "Plan", "Reduced", "Stitcher", "plan_of"]

# What a context computes at its first use, from nothing but the arguments of the call.
_LAZY = frozenset({"_order", "_padded", "_tables"})


@dataclass(frozen=True)
class Place:
    """A branch of the model: its path, its step, its layer if it has a state, its template."""

    path: str
    step: int
    layer: int | None
    template: int
    module: nn.Module


@dataclass
class Plan:
    """Every branch in order; a template is the number of the first branch of its structure."""

    places: list[Place]
    refused: str = ""
    """Why copies would not be right, found out while tracing."""

    @property
    def templates(self) -> list[int]:
        """The branches to trace."""
        return sorted({place.template for place in self.places})


def plan_of(model: Any) -> Plan:
    """Compare all branches of a model."""
    places: list[Place] = []
    for i, step in enumerate(model.steps):
        for j, branch in enumerate(step.branches):
            known = dict.fromkeys(place.template for place in places)
            equal = (t for t in known if _same_branch(places[t].module, branch))
            template = next(equal, len(places))
            places.append(Place(f"steps.{i}.branches.{j}", i, branch.layer, template, branch))
    return Plan(places)


def _same_branch(one: Any, other: Any) -> bool:
    """The number of the layer says where a branch stands, not what it does."""
    stateful = one.layer is not None, other.layer is not None
    return stateful[0] == stateful[1] and same_structure(one, other, apart=frozenset({"layer"}))


class Reduced(nn.Module):
    """The model with its templates only: logits, then what each template returned."""

    def __init__(self, model: Any, plan: Plan, logits_to_keep: int) -> None:
        """Share all weights with ``model``; parts keep their paths."""
        super().__init__()
        self.model = _with_templates(model, plan)
        self._plan = plan
        self._keys = [list(spec) for spec in model.state_specs()]
        self._keep = logits_to_keep

    def forward(self, input_ids: Tensor, positions: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        """``flat`` holds the states of the stateful templates, in order."""
        x, ctx = self.model.embedded(input_ids, positions)
        given, out = iter(flat), []
        for number in self._plan.templates:
            place = self._plan.places[number]
            keys = [] if place.layer is None else self._keys[place.layer]
            out += self._traced(number, x, {key: next(given) for key in keys}, ctx)
        return (self.model.logits(RESIDUAL(x), self._keep), *out)

    def _traced(
        self, number: int, x: Tensor, state: Mapping[str, Tensor], ctx: Any
    ) -> list[Tensor]:
        """Run a template between its marks; what it adds, then its new state."""
        place, before = self._plan.places[number], dict(vars(ctx))
        inner, *states = BEGIN([x, *state.values()], number)
        y, after = place.module(inner, dict(zip(state, states, strict=True)), ctx)
        _check_outputs(place.path, x, y, state, after)
        self._plan.refused = self._plan.refused or _reason_against(place, x, y, ctx, before)
        marked: list[Tensor] = END([y, *(after[key] for key in state)], number)
        return marked


def _check_outputs(
    path: str, x: Tensor, y: Tensor, state: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> None:
    """CaptureError unless a branch returned what it was given: another x, the same states."""
    if set(after) != set(state):
        raise CaptureError(
            f"{path}: the mixer returned the state {sorted(after)}, its state_spec has "
            f"{sorted(state)}; return these keys"
        )
    _check_like(f"{path}: the mixer's output", y, x)
    for key, before in state.items():
        if after[key].dtype != before.dtype:
            raise CaptureError(
                f"{path}: the mixer returned the state '{key}' as {after[key].dtype}, its "
                f"state_spec has {before.dtype}; cast it"
            )
        _check_like(f"{path}: the mixer's state '{key}'", after[key], before)


def _check_like(what: str, found: Tensor, wanted: Tensor) -> None:
    """Ranks and the sizes that are numbers: a question about the others would fix them."""
    shapes = tuple(found.shape), tuple(wanted.shape)
    fixed = [
        (one, other)
        for one, other in zip(*shapes, strict=False)
        if isinstance(one, int) and isinstance(other, int)
    ]
    if found.dim() != wanted.dim() or any(one != other for one, other in fixed):
        raise CaptureError(f"{what} has shape {shapes[0]}, expected {shapes[1]}")


def _with_templates(model: Any, plan: Plan) -> Any:
    """A model that shares everything with ``model`` and has the steps of the templates alone."""
    reduced = object.__new__(type(model))
    steps = nn.ModuleList()
    reduced.__dict__ = {**vars(model), "_modules": {**model._modules, "steps": steps}}
    for number in plan.templates:
        place = plan.places[number]
        step, branch = (part for part in place.path.split(".")[1::2])
        if step not in steps._modules:
            steps._modules[step] = type(model.steps[place.step])([])
        inner: Any = steps._modules[step]
        inner.branches._modules[branch] = place.module
    return reduced


def _reason_against(place: Place, x: Tensor, y: Tensor, ctx: Any, before: Mapping[str, Any]) -> str:
    """Why another branch might not be a copy of this one, if so."""
    if y.dtype != x.dtype:
        return f"{place.path} changes the element type"
    changed = [n for n, v in vars(ctx).items() if n not in _LAZY and before.get(n, ctx) is not v]
    if changed or ctx.aux_losses:
        return f"{place.path} leaves something in the context: {changed or 'a loss'}"
    return ""


@dataclass
class Stitcher:
    """The lowering's side of the marks."""

    plan: Plan
    weights: WeightsOf
    keys: Sequence[Sequence[str]]
    """The names of the states, by layer."""
    states: dict[str, Value] = field(default_factory=dict)
    after: dict[str, Value] = field(default_factory=dict)
    _open: dict[int, tuple[int, tuple[Value, ...]]] = field(default_factory=dict)
    _done: dict[int, Template] = field(default_factory=dict)

    def begin(self, b: Builder, inputs: Sequence[Value], number: int) -> tuple[Value, ...]:
        """Values that stand for the branch's inputs until its end."""
        stand_ins = tuple(Value(v.type, v.hint) for v in inputs)
        self._open[number] = (len(b.ops), stand_ins)
        return stand_ins

    def end(self, b: Builder, outputs: Sequence[Value], number: int) -> tuple[Value, ...]:
        """Keep what was written since the beginning, but for what all branches share."""
        start, inputs = self._open.pop(number)
        path, written = self.plan.places[number].path, b.ops[start:]
        del b.ops[start:]
        varying = {*inputs, *self.weights.below(path).values()}
        own: list[Op] = []
        for op in written:
            if varying.isdisjoint(v for v in op.operands if v is not None):
                b.append(op)
            else:
                own.append(op)
                varying.update(op.results)
        self._done[number] = Template(path, inputs, tuple(own), tuple(outputs))
        return tuple(outputs)

    def residual(self, b: Builder, x: Value) -> Value:
        """Every branch of the model: what it adds to the stream, and its new state."""
        step, total = -1, x
        for place in self.plan.places:
            if place.step != step:
                step, x = place.step, total
            y = self._branch(b, place, x)
            b.loc = Loc(f"steps.{step}")
            total = b(Add(), total, y)
        return total

    def _branch(self, b: Builder, place: Place, x: Value) -> Value:
        template = self._done[place.template]
        names = [] if place.layer is None else self._names(place.layer)
        for name, stand_in in zip(names, template.inputs[1:], strict=True):
            self.states[name] = Value(stand_in.type, name)
        weights = self._weights(b, template.path, place)
        inputs = [x, *(self.states[name] for name in names)]
        y, *after = write_template(b, template, inputs, weights, place.path)
        self.after.update(zip(names, after, strict=True))
        return y

    def _names(self, layer: int) -> list[str]:
        return [f"state.{layer}.{key}" for key in self.keys[layer]]

    def _weights(self, b: Builder, path: str, place: Place) -> dict[Value, Value]:
        """From each weight of a template to the one of the same name in another branch."""
        own: dict[str, Tensor] = dict(place.module.named_parameters(remove_duplicate=False))
        own.update(place.module.named_buffers(remove_duplicate=False))
        return {
            value: self.weights.value(b, own[name], value.type)
            for name, value in self.weights.below(path).items()
        }
