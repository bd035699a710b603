"""Floating-point operations of the ops that mixers share, for torch's own counter.

torch counts matrix products and knows nothing of ``seqmix::`` ops. Here is what each of them does,
by the sizes of its operands: multiply-adds times two, and real operations for a transform. Like
torch's formulas these leave out elementwise work and softmax; unlike torch's they count only the
pairs that a causal mask or a window leaves, as ``SequenceMixer.flops`` does.

B batch, H heads, S new tokens, T keys, K key size, V value size, D channels, W and L taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from seqmix.errors import PluginError
from seqmix.op import bound_ops

__all__ = [
    "Formula",
    "convolution_flops",
    "count_flops",
    "flop_formula",
    "register_flop_formulas",
    "visible_pairs",
]

Formula: TypeAlias = Callable[..., int]
Shape: TypeAlias = Sequence[int]

_FORMULAS: dict[str, tuple[Formula, float]] = {}


def flop_formula(name: str, *, backward: float = 2.0) -> Callable[[Formula], Formula]:
    """Say what the op ``seqmix::<name>`` costs: ``formula(*shapes, **attributes) -> int``.

    ``shapes`` are those of the operands, None for an absent one. ``backward`` is the cost of its
    derivative in forwards: two of the same size for a product. PluginError for a second formula.
    """
    if name in _FORMULAS:
        raise PluginError(f"op 'seqmix::{name}' has a formula for its flops already; remove one")

    def keep(formula: Formula) -> Formula:
        _FORMULAS[name] = formula, backward
        return formula

    return keep


def register_flop_formulas() -> None:
    """Make ``torch.utils.flop_counter.FlopCounterMode`` count every op bound so far.

    The counter sees an op while gradients are enabled; without them seqmix calls the kernel
    directly, and the counter sees what is inside.
    """
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    for name, bound in bound_ops().items():
        if name not in _FORMULAS:
            continue
        formula, factor = _FORMULAS[name]
        for target, counted in (
            (name, _forward(formula)),
            (f"{name}_backward", _backward(formula, factor, bound.defn)),
        ):
            packet = getattr(torch.ops.seqmix, target, None)
            if packet is not None and packet not in flop_registry:
                register_flop_formula(packet)(counted)


def count_flops(run: Callable[[], object]) -> int:
    """What torch's counter finds while ``run()`` runs, with the ops of seqmix counted."""
    from torch.utils.flop_counter import FlopCounterMode

    register_flop_formulas()
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def visible_pairs(queries: int, keys: int, *, causal: bool = True, window: int = 0) -> int:
    """The (query, key) pairs that attention looks at; the queries are the last of the keys.

    Without padding this is exact. A window sees at most ``window`` keys.
    """
    if causal:
        # Those before the first key see nothing.
        queries = min(queries, keys)
    past = keys - queries
    reach = min(window or keys, keys)
    if not causal:
        return queries * reach
    growing = min(max(0, reach - past), queries)
    first = past + 1
    return growing * (2 * first + growing - 1) // 2 + (queries - growing) * reach


def convolution_flops(
    batch_size: int, channels: int, seq_len: int, taps: int, past: int = 0
) -> int:
    """Operations of one long convolution of ``seq_len`` new tokens, the lesser of two ways.

    A product per tap that reaches something, which is what one new token or a few taps cost; or
    transforms of n = 2^k samples that hold all: ``2.5 n log2 n`` real operations for each real one
    (two per row and channel, one per filter), and 6 for each of n / 2 products of a row.
    """
    rows, total = batch_size * channels, past + seq_len
    taps = min(taps, total)
    n = 1 << max(1, (max(total, seq_len + taps - 1) - 1).bit_length())
    transforms = (2 * rows + channels) * 5 * n * (n.bit_length() - 1) // 2
    return min(2 * rows * seq_len * taps, 3 * rows * n + transforms)


@flop_formula("attention", backward=2.5)
def _attention(q: Shape, k: Shape, v: Shape, *_: object, causal: bool = True, **more: Any) -> int:
    pairs = visible_pairs(q[2], k[2], causal=causal, window=more.get("window", 0))
    return 2 * q[0] * q[1] * pairs * (q[3] + v[3])


@flop_formula("selected_attention", backward=2.5)
def _selected_attention(
    q: Shape, k: Shape, v: Shape, _q: Shape, _k: Shape, selected: Shape, *_: object, **more: Any
) -> int:
    """The selected queries as if they were spread evenly over the sequence."""
    return _attention(q, k, v, **more) * selected[1] // q[2]


@flop_formula("linear_attention")
def _linear_attention(q: Shape, k: Shape, v: Shape, *_: object, **more: Any) -> int:
    """Each token adds to the memory and reads it, whatever the chunks save or spend."""
    return 2 * 2 * q[0] * q[1] * q[2] * q[3] * v[3]


@flop_formula("linear_scan")
def _linear_scan(a: Shape, b: Shape, initial: Shape, **more: Any) -> int:
    return 2 * b[0] * b[1] * b[2]


@flop_formula("causal_conv1d")
def _causal_conv1d(x: Shape, weight: Shape, *_: object, **more: Any) -> int:
    return 2 * x[0] * x[1] * x[2] * weight[1]


@flop_formula("long_conv", backward=1.5)
def _long_conv(x: Shape, filter: Shape, history: Shape | None = None, **more: Any) -> int:
    past = 0 if history is None else history[2]
    return convolution_flops(x[0], filter[0], x[2], filter[1], past)


def _forward(formula: Formula) -> Formula:
    """The formula as torch calls it."""

    def counted(*shapes: Any, out_shape: Any = None, **attributes: Any) -> int:
        return int(formula(*shapes, **attributes))

    return counted


def _backward(formula: Formula, factor: float, defn: Any) -> Formula:
    """The formula of the derivative, which takes gradients, then operands, then results."""
    first, count = len(defn.results), len(defn.operands)

    def counted(*shapes: Any, out_shape: Any = None, needs: object = (), **attributes: Any) -> int:
        return int(factor * formula(*shapes[first : first + count], **attributes))

    return counted
