"""What a mixer says that it costs, against what torch's counter sees it do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.core import tiny
from tests.mixers import ShortConv
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from seqmix import registry
from seqmix.config import build_config
from seqmix.context import Context
from seqmix.costs import mixer_cost, model_costs, total_cost
from seqmix.errors import PluginError
from seqmix.flops import (
    convolution_flops,
    count_flops,
    flop_formula,
    register_flop_formulas,
    visible_pairs,
)
from seqmix.mixer import SequenceMixer
from seqmix.ops import attention, long_conv, selected_attention
from seqmix.state import State, initial_state

BATCH, LENGTH, WIDTH = 2, 64, 24

# Elementwise work is in neither count but for the few products that a mixer's own formula names,
# and features that are counted once may be held twice: together this is no more than a quarter.
TOLERANCE = 1.25
# The tokens that a learned or random selection takes are known at run time only. The formula has
# the expected number of them, the counter the room that the budget leaves: per step that is 1 or 0.
SELECTIVE = {"selective_attention": 5.0}
ELEMENTWISE = {"seqmix.rotary", "seqmix.clip_gradient"}


def mixers(name: str) -> Iterator[SequenceMixer]:
    cls = registry.get("mixers", name)
    for options in cls.examples():
        yield cls(build_config(cls.Config, options, name), WIDTH)


def run(mixer: SequenceMixer, length: int, state: State) -> State:
    """The state after so many tokens; an empty one stands for the beginning."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(BATCH, length, WIDTH)
        ids = torch.randint(0, 9, (BATCH, length))
    past = LENGTH if state else 0
    state = state or initial_state(mixer.state_spec(), BATCH, dtype=torch.float32)
    positions = torch.arange(past, past + length).expand(BATCH, length)
    after: State = mixer(x, state, Context(positions, input_ids=ids))[1]
    return after


@pytest.mark.parametrize("name", registry.names("mixers"))
def test_every_mixer_costs_what_it_says(name: str) -> None:
    allowed = SELECTIVE.get(name, TOLERANCE)
    for mixer in mixers(name):
        after = compare(mixer, LENGTH, {}, mixer.flops(BATCH, LENGTH), allowed)
        # Decoding takes from the state what training makes anew.
        compare(mixer.eval(), 1, after, mixer.step_flops(BATCH, LENGTH), allowed)


def compare(mixer: SequenceMixer, length: int, state: State, said: int, allowed: float) -> State:
    """The state after so many tokens, which cost what was ``said``."""
    after: list[State] = []
    with Names() as names:
        counted = count_flops(lambda: after.append(run(mixer, length, state)))
    assert said / allowed <= counted <= said * allowed, f"{mixer}: {length} tokens"
    registered = {str(packet) for packet in flop_registry}
    assert names.seen <= registered | ELEMENTWISE, "an op without a formula, see flop_formula"
    return after[0]


class Names(TorchDispatchMode):
    """The ops of seqmix that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "seqmix":
            self.seen.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", registry.names("mixers"))
def test_the_state_is_as_large_as_the_spec_says(name: str) -> None:
    for mixer in mixers(name):
        after = run(mixer, LENGTH, {})
        held = sum(t.numel() * t.element_size() for t in after.values())
        cost = mixer_cost(name, mixer, BATCH, LENGTH, torch.float32)
        assert cost.bytes == held
        assert cost.start_bytes + LENGTH * cost.token_bytes == held


def test_torch_counts_our_ops_by_itself() -> None:
    q = torch.randn(1, 2, 5, 3, requires_grad=True)
    positions = torch.arange(5).unsqueeze(0)
    register_flop_formulas()
    with FlopCounterMode(display=False) as counter:
        attention(q, q, q, positions, positions).sum().backward()
    forward = 2 * 2 * 15 * (3 + 3)
    assert counter.get_flop_counts()["Global"] == {
        torch.ops.seqmix.attention: forward,
        torch.ops.seqmix.attention_backward: int(2.5 * forward),
    }


@pytest.mark.parametrize("window", [0, 1, 3, 50])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (5, 5), (4, 11), (9, 10)])
def test_pairs_are_those_that_the_mask_leaves(queries: int, keys: int, window: int) -> None:
    row = torch.arange(keys - queries, keys).unsqueeze(1)
    column = torch.arange(keys)
    seen = column <= row
    if window:
        seen &= column > row - window
    assert visible_pairs(queries, keys, window=window) == int(seen.sum())
    assert visible_pairs(queries, keys, causal=False) == queries * keys


def test_a_selection_costs_its_share() -> None:
    q = torch.randn(1, 2, 8, 3)
    positions = torch.arange(8).unsqueeze(0)
    chosen = torch.tensor([[1, 5]])

    def half(rows: Tensor) -> int:
        return count_flops(lambda: selected_attention(q, q, q, positions, positions, rows))

    assert 4 * half(chosen) == count_flops(lambda: attention(q, q, q, positions, positions))


def test_a_long_convolution_takes_the_cheaper_way() -> None:
    direct = 2 * 3 * 4 * 100 * 5
    assert convolution_flops(3, 4, 100, 5) == direct
    n, rows = 256, 12
    transforms = (2 * rows + 4) * 5 * n * 8 // 2
    assert convolution_flops(3, 4, 100, 100) == transforms + 3 * rows * n
    assert convolution_flops(3, 4, 1, 10**6, past=99) == 2 * rows * 100
    x, filter = torch.randn(3, 4, 100), torch.randn(4, 100)
    assert count_flops(lambda: long_conv(x, filter)) == transforms + 3 * rows * n
    step = count_flops(lambda: long_conv(x[..., :1], filter, x[..., 1:]))
    assert step == 2 * rows * 100


def test_one_formula_per_op() -> None:
    with pytest.raises(PluginError, match=r"'seqmix::attention' has a formula .* already"):
        flop_formula("attention")(lambda *_: 0)


def test_a_step_is_what_one_more_token_adds_unless_the_mixer_knows_better() -> None:
    mixer = ShortConv(ShortConv.Config(taps=3), 10)
    assert mixer.step_flops(2, 0) == mixer.step_flops(2, 7) == mixer.flops(2, 1)


def test_a_model_is_the_sum_of_its_kinds() -> None:
    model = tiny.model()
    costs = model_costs(model, 2, 9)
    assert [cost.kind for cost in costs] == ["attention", "swiglu", "mlp", "embedding and head"]
    assert [cost.count for cost in costs] == [4, 2, 2, 1]
    total = total_cost(costs)
    assert total.parameters == model.parameter_count()
    assert total.flops == model.flops(2, 9)
    assert total.step_flops == model.step_flops(2, 9) == model.flops(2, 10) - model.flops(2, 9)
    counted = count_flops(lambda: model(*tiny.tokens(2, 9)))
    assert model.flops(2, 9) <= counted <= 1.05 * model.flops(2, 9)
    states: Any = model(*tiny.tokens(2, 9))[1]
    assert total.bytes == sum(t.numel() * t.element_size() for s in states for t in s.values())
