"""The four laws of a mixer, the shapes it promises, and its gradients; in float64 torch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from seqmix.mixer import SequenceMixer
from seqmix.state import State
from seqmix.testing.inputs import call, distance, fresh_state, random_input, with_padding
from seqmix.testing.report import Row
from seqmix.testing.tolerances import TOLERANCES

__all__ = ["check_laws"]

_DTYPE = torch.float64
_TOLERANCE = TOLERANCES["f64"]


def check_laws(mixer: SequenceMixer, width: int, lengths: tuple[int, ...]) -> Iterator[Row]:
    """Every law at every length; ``mixer`` is in float64 and in eval mode."""
    for length in lengths:
        with torch.no_grad():
            yield from _shapes(mixer, width, length)
            yield from _splitting(mixer, width, length)
            yield from _padding(mixer, width, length)
            yield from _causality(mixer, width, length)
            yield from _purity(mixer, width, length)
    yield from _gradients(mixer, width)


def _positions(start: int, stop: int, batch: int) -> Tensor:
    return torch.arange(start, stop).expand(batch, -1)


def _shapes(mixer: SequenceMixer, width: int, length: int) -> Iterator[Row]:
    """The output is like x, and the state is what ``state_spec`` says."""
    x = random_input(2, length, width, _DTYPE)
    fresh = fresh_state(mixer, 2, _DTYPE)
    y, after = call(mixer, x, _positions(0, length, 2), fresh)
    specs = mixer.state_spec()
    problems = [_misfit("output", tuple(x.shape), x.dtype, y)]
    if set(after) != set(specs):
        problems.append(f"state has {sorted(after)}, expected {sorted(specs)}")
    else:
        problems += [
            _misfit(f"state '{key}'", spec.shape(2, length), fresh[key].dtype, after[key])
            for key, spec in specs.items()
        ]
    problems = [problem for problem in problems if problem]
    yield Row("shapes", f"S={length}", float(len(problems)), 0.0, "; ".join(problems))


def _misfit(name: str, shape: tuple[int, ...], dtype: torch.dtype, found: Tensor) -> str:
    if found.shape == shape and found.dtype == dtype:
        return ""
    return f"{name} is {found.dtype} {list(found.shape)}, expected {dtype} {list(shape)}"


def _splitting(mixer: SequenceMixer, width: int, length: int) -> Iterator[Row]:
    """Piece by piece equals at once, at every place to cut, and token by token."""
    x = random_input(2, length, width, _DTYPE, seed=1)
    whole, after = _pieces(mixer, x, [])
    cuts = [[cut] for cut in _some(range(1, length))]
    if length > 1:
        cuts.append(list(range(1, length)))
    for places in cuts:
        y, state = _pieces(mixer, x, places)
        where = f"S={length}"
        detail = f"cut at {places if len(places) < 4 else 'every token'}"
        yield Row("splitting", where, distance(y, whole), _TOLERANCE, detail)
        yield Row("splitting, state", where, distance(state, after), _TOLERANCE, detail)


def _some(cuts: range) -> list[int]:
    """All of a few, else a fixed sample with both ends."""
    if len(cuts) <= 10:
        return list(cuts)
    middle = random.Random(len(cuts)).sample(cuts[1:-1], 4)
    return sorted({cuts[0], cuts[-1], *middle})


def _pieces(mixer: SequenceMixer, x: Tensor, cuts: list[int]) -> tuple[Tensor, State]:
    state, out = fresh_state(mixer, x.shape[0], x.dtype), []
    for start, stop in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        y, state = call(mixer, x[:, start:stop], _positions(start, stop, x.shape[0]), state)
        out.append(y)
    return torch.cat(out, dim=1), state


def _padding(mixer: SequenceMixer, width: int, length: int) -> Iterator[Row]:
    """Padding outputs 0, and changes neither the other outputs nor what comes after."""
    x = random_input(2, length + 2, width, _DTYPE, seed=2)
    _, start = call(mixer, x[:, :1], _positions(0, 1, 2), fresh_state(mixer, 2, _DTYPE))
    plain, state = call(mixer, x[:, 1:-1], _positions(1, length + 1, 2), start)
    last = _positions(length + 1, length + 2, 2)
    following, _ = call(mixer, x[:, -1:], last, state)
    for name, rows in _patterns(length).items():
        wide, positions, keep = with_padding(x[:, 1:-1], rows, start=1)
        y, padded = call(mixer, wide, positions, start)
        after, _ = call(mixer, x[:, -1:], last, padded)
        where = f"S={length}"
        yield Row("padding", where, distance(y[keep], plain.flatten(0, 1)), _TOLERANCE, name)
        yield Row("padding, outputs 0", where, distance(y[~keep], 0 * y[~keep]), 0.0, name)
        yield Row("padding, afterwards", where, distance(after, following), _TOLERANCE, name)
    yield _only_padding(mixer, x, start)


def _patterns(length: int) -> dict[str, list[list[bool]]]:
    """Places of the tokens in two rows, by name."""
    half, pad, real = length // 2, [False] * 3, [True] * length
    left, right, middle = pad + real, real + pad, [True] * half + pad + [True] * (length - half)
    scattered = [place for i in range(length) for place in ([True, False], [True])[i % 2]]
    return {
        "left": [left, left],
        "right": [right, right],
        "middle": [middle, middle],
        "scattered": [scattered, scattered],
        "one row left, one right": [left, right],
    }


def _only_padding(mixer: SequenceMixer, x: Tensor, state: State) -> Row:
    """A call with nothing but padding leaves no trace."""
    nothing = torch.full((2, 2), -1)
    y, after = call(mixer, torch.full_like(x[:, :2], 37.0), nothing, state)
    expected, _ = call(mixer, x[:, 1:2], _positions(1, 2, 2), state)
    found, _ = call(mixer, x[:, 1:2], _positions(1, 2, 2), after)
    error = max(distance(y, 0 * y), distance(found, expected))
    return Row("padding, nothing else", f"S={y.shape[1]}", error, _TOLERANCE)


def _causality(mixer: SequenceMixer, width: int, length: int) -> Iterator[Row]:
    """Changing x[t] changes no output before t: bitwise, or within rounding where FFT is used."""
    x = random_input(1, length, width, _DTYPE, seed=3)
    positions = _positions(0, length, 1)
    before, _ = call(mixer, x, positions, fresh_state(mixer, 1, _DTYPE))
    allowed = 0.0 if mixer.exact_causality else _TOLERANCE
    for t in _some(range(1, length)):
        changed = x.clone()
        changed[:, t:] += 1.0
        y, _ = call(mixer, changed, positions, fresh_state(mixer, 1, _DTYPE))
        error = distance(y[:, :t], before[:, :t])
        yield Row("causality", f"S={length}", error, allowed, f"changed from {t} on")


def _purity(mixer: SequenceMixer, width: int, length: int) -> Iterator[Row]:
    """No argument is written to, and the same arguments give the same result again."""
    x = random_input(2, length, width, _DTYPE, seed=4)
    positions = _positions(0, length, 2)
    _, state = call(mixer, x, positions, fresh_state(mixer, 2, _DTYPE))
    later = _positions(length, 2 * length, 2)
    kept_x, kept = x.clone(), {key: t.clone() for key, t in state.items()}
    first = call(mixer, x, later, state)
    written = max(distance(x, kept_x), distance(state, kept))
    yield Row("purity, arguments kept", f"S={length}", written, 0.0)
    call(mixer, x * 2, later, state)
    again = call(mixer, x, later, state)
    repeat = max(distance(again[0], first[0]), distance(again[1], first[1]))
    yield Row("purity, same again", f"S={length}", repeat, 0.0)


def _gradients(mixer: SequenceMixer, width: int) -> Iterator[Row]:
    """Gradcheck of outputs and states in x, states and weights, from a state that is not 0."""
    x = random_input(1, 3, width, _DTYPE, seed=5)
    with torch.no_grad():
        _, state = call(mixer, x, _positions(0, 3, 1), fresh_state(mixer, 1, _DTYPE))
    keys = [key for key, t in state.items() if t.dtype == _DTYPE]
    weights = [p for p in mixer.parameters() if p.requires_grad]
    positions = _positions(3, 6, 1)

    def run(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        y, after = call(mixer, x, positions, {**state, **dict(zip(keys, given, strict=False))})
        return (y, *(after[key] for key in keys))

    inputs = [x, *(state[key] for key in keys)]
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    try:
        # fast_mode projects on random directions: it sees every entry at the cost of two calls.
        torch.autograd.gradcheck(run, (*inputs, *weights), fast_mode=True, atol=1e-6, rtol=1e-4)
    except RuntimeError as error:
        yield Row("gradients", "gradcheck", 1.0, 0.0, str(error).splitlines()[0])
    else:
        yield Row("gradients", "gradcheck", 0.0, 0.0)
