"""Inputs that a user may pass by mistake, or on purpose: what they are, and what is right.

The list is read by the tests, which ask every backend, and by the page that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.backends.bad_input_calls import (
    compiled,
    each,
    generated,
    logits_are_nan,
    nan_in_row_0,
    of_row_1,
    on_meta,
    run_with,
    second_step,
    states_kept,
    step_without,
    unaligned,
    with_number,
    with_states_of,
)
from tests.backends.bad_input_subject import BACKENDS, KINDS, LEARNED, Subject
from tests.core import tiny
from torch import Tensor

import seqmix

TOKENS = ("input_ids", "positions")
KEY = "state.0.key"


@dataclass(frozen=True)
class Case:
    """One kind of input: refused with words that contain ``says``, or run (``says`` is empty)."""

    group: str
    title: str
    call: Callable[[Subject], Any]
    says: str = ""
    right: str = ""
    """Of an input that runs: what comes out."""
    only: frozenset[str] = field(default_factory=lambda: frozenset(BACKENDS))
    """The backends that refuse."""


def cases() -> list[Case]:
    """All of them, in the order of the page."""
    return [*_numbers(), *_shapes(), *_kinds(), *_names(), *_foreign(), *_steps(), *_generation(),
            *_weights(), *_views(), *_padding()]  # fmt: skip


def _numbers() -> Iterator[Case]:
    group = "Numbers"
    for title, name, number, says in (
        ("a token id beyond the vocabulary", "input_ids", tiny.VOCAB, "0..52, found 53"),
        ("a negative token id", "input_ids", -1, "0..52, found -1"),
        ("a position beyond the table", "positions", LEARNED, "0..15, found 16"),
        ("a position far beyond it", "positions", 2**60, "0..15, found 1152921504606846976"),
        ("a position below -1", "positions", -2, "or -1 at padding, found -2"),
    ):
        yield Case(group, title, run_with({name: with_number(number)}), says)


def _shapes() -> Iterator[Case]:
    group = "Sizes and ranks"
    yield Case(group, "no token (S = 0)", run_with(dict.fromkeys(TOKENS, lambda t: t[:, :0])),
               "S should be at least 1, found 0")  # fmt: skip
    yield Case(group, "no row (batch 0)", lambda s: s.run_each(lambda t: t[:0]),
               "B should be at least 1, found 0")  # fmt: skip
    yield Case(group, "no row, and no states", lambda s: s.executable(*(t[:0] for t in s.tokens())),
               "B should be at least 1, found 0")  # fmt: skip
    yield Case(group, "`initial_state(0)`", lambda s: s.executable.initial_state(0),
               "at least 1, found 0")  # fmt: skip
    yield Case(group, "`initial_state(-1)`", lambda s: s.executable.initial_state(-1),
               "at least 1, found -1")  # fmt: skip
    yield Case(group, "`initial_state('2')`", lambda s: s.executable.initial_state("2"),
               "should be an integer, at least 1, found '2'")  # fmt: skip
    yield Case(group, "tokens of rank 1", run_with({"input_ids": lambda t: t[0]}), "found i64[3]")
    yield Case(group, "tokens of rank 3", run_with({"positions": lambda t: t[None]}),
               "found i64[1, 2, 3]")  # fmt: skip
    yield Case(group, "one number for tokens",
               lambda s: s.executable(torch.tensor(3), torch.tensor(0)), "found i64[]")  # fmt: skip
    yield Case(group, "positions for fewer tokens", run_with({"positions": lambda t: t[:, :2]}),
               "S is 3 by axis 1 of 'input_ids', but 2 by axis 1 of 'positions'")  # fmt: skip
    yield Case(group, "positions for fewer rows", run_with({"positions": lambda t: t[:1]}),
               "B is 2 by axis 0 of 'input_ids', but 1 by axis 0 of 'positions'")  # fmt: skip


def _kinds() -> Iterator[Case]:
    group = "Types, and where the numbers lie"
    for title, name, change, says in (
        ("int32 ids", "input_ids", Tensor.int, "i64[B, S], found i32[2, 3]"),
        ("float positions", "positions", Tensor.float, "found f32[2, 3]"),
        ("complex ids", "input_ids", lambda t: t.to(torch.complex64), "torch.complex64[2, 3]"),
        ("a float64 state", KEY, Tensor.double, "found f64[2, 1, 2, 6]"),
        ("a bfloat16 state", KEY, Tensor.bfloat16, "found bf16[2, 1, 2, 6]"),
        ("a numpy array", "positions", lambda t: t.numpy(), "found ndarray"),
        ("a list", "input_ids", lambda t: t.tolist(), "found list"),
        ("positions on the meta device", "positions", lambda t: t.to("meta"), "a meta tensor"),
        ("a state on the meta device", KEY, lambda t: t.to("meta"), "a meta tensor"),
        ("sparse positions", "positions", Tensor.to_sparse, "a torch.sparse_coo tensor"),
        ("a sparse state", KEY, Tensor.to_sparse, "a torch.sparse_coo tensor"),
    ):
        yield Case(group, title, run_with({name: change}), says)
    yield Case(group, "a list, called", lambda s: s.executable(s.tokens()[0].tolist(), None),
               "input_ids should be a tensor, found list")  # fmt: skip


def _names() -> Iterator[Case]:
    group = "Names"
    yield Case(
        group, "positions left out", run_with({"positions": None}), "'positions' i64[B, S] is"
    )
    yield Case(group, "a state left out", run_with({KEY: None}), f"'{KEY}' f32[B, 1, P, 6] is")
    yield Case(group, "a misspelt input", run_with({"position": lambda _: torch.zeros(1)}),
               "'position' is no input; did you mean 'positions'")  # fmt: skip
    yield Case(group, "the logits among the states", run_with({"logits": lambda _: torch.zeros(1)}),
               "'logits' is no input")  # fmt: skip
    yield Case(group, "tokens among the states", lambda s: s.executable(*s.tokens(), s.inputs()),
               "'input_ids' is among the states")  # fmt: skip
    yield Case(group, "a graph that is not there",
               lambda s: s.executable.run("forwards", s.inputs()),
               "no graph 'forwards'")  # fmt: skip
    yield Case(group, "a list of inputs",
               lambda s: s.executable.run("forward", list(s.inputs().values())),
               "a mapping from names to tensors, found list")  # fmt: skip


def _foreign() -> Iterator[Case]:
    group = "States of others"
    wider = [{**tiny.ATTENTION, "head_dim": 8}, *KINDS[1:]]
    longer = [KINDS[0], {**tiny.WINDOW, "window": 6}, KINDS[2]]
    for title, steps, says in (
        ("of a model with other heads", wider, f"axis 3 of '{KEY}' should be 6, found 8"),
        ("of another window", longer, "axis 2 of 'state.1.key' should be 3, found 5"),
        ("of a model with fewer layers", KINDS[:2], "'state.2.recurrent' f32[B, 2, 153, 6] is"),
        ("of a model with more layers", [*KINDS, tiny.WINDOW], "'state.3.key' is no input"),
    ):
        yield Case(group, title, with_states_of(steps), says)
    yield Case(group, "of another batch",
               lambda s: s.executable(*s.tokens(), s.executable.initial_state(3)),
               f"B is 2 by axis 0 of 'input_ids', but 3 by axis 0 of '{KEY}'")  # fmt: skip
    yield Case(group, "of unequal lengths", run_with({"state.0.value": lambda t: t[:, :, :1]}),
               f"P is 2 by axis 2 of '{KEY}', but 1 by axis 2 of 'state.0.value'")  # fmt: skip
    yield Case(group, "a list of states",
               lambda s: s.executable(*s.tokens(), list(s.states().values())),
               "states should be a mapping")  # fmt: skip
    yield Case(group, "of another backend (eager torch)",
               lambda s: s.executable(*s.tokens(), s.states()),
               right="as with its own")  # fmt: skip
    yield Case(group, "key positions that are not 0, 1, 2, ..",
               run_with({"state.0.key_positions": lambda t: t * 2}), "counts the past by its mask",
               right="onnxruntime refuses what its file cannot say; the others use the positions",
               only=frozenset({"onnxruntime"}))  # fmt: skip


def _steps() -> Iterator[Case]:
    group = "Steps"
    yield Case(group, "two tokens at once",
               lambda s: s.executable.steps(s.states())(*(t[:, :2] for t in s.tokens())),
               "a step reads one token of each row, input_ids should be [B, 1]")  # fmt: skip
    yield Case(group, "a list of states", lambda s: s.executable.steps(list(s.states().values())),
               "states should be a mapping")  # fmt: skip
    yield Case(group, "no states", lambda s: s.executable.steps(None), "found None")
    yield Case(group, "a state left out", step_without(KEY), f"'{KEY}' f32[B, 1, P, 6] is")
    yield Case(group, "another batch than the states'",
               lambda s: s.executable.steps(s.states())(*(t[:1, :1] for t in s.tokens())),
               f"B is 1 by axis 0 of 'input_ids', but 2 by axis 0 of '{KEY}'")  # fmt: skip
    ids, places = torch.tensor([[3], [4]]), torch.tensor([[3], [3]])
    for title, second, says in (
        ("float ids", (ids.float(), places), "found f32[2, 1]"),
        ("ids of rank 1", (ids[:, 0], places), "found i64[2]"),
        ("a list", (ids.tolist(), places), "input_ids should be a tensor, found list"),
        ("ids on the meta device", (ids.to("meta"), places), "a meta tensor"),
        ("an id beyond the vocabulary", (ids + 50, places), "0..52, found 54"),
        ("a position beyond the table", (ids, places + 13), "0..15, found 16"),
        ("another batch", (ids[:1], places[:1]), "B is 1 by axis 0 of 'input_ids', but 2 by"),
    ):
        yield Case(group, f"after a step: {title}", second_step(*second), says)


def _generation() -> Iterator[Case]:
    group = "Generation"
    rows, short = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)
    nothing = torch.tensor([[1, 1, 1], [0, 0, 0]])
    prompts: Sequence[tuple[str, Any, dict[str, Any], str]] = (
        ("more tokens than positions", [1, 2, 3], {"max_new_tokens": 20}, "model 'model' has"),
        ("an id beyond the vocabulary", [1, 53], {}, "prompt 0: ids should be in 0..52, found 53"),
        ("an empty prompt", [[1], []], {}, "prompt 1 of 2 is empty"),
        ("no prompt", None, {}, "found None"),
        ("text", "hello", {}, "found str; a tokenizer makes ids of text"),
        ("a numpy array", rows.numpy(), {}, "found ndarray"),
        ("a prompt on the meta device", rows.to("meta"), {}, "neither meta nor sparse"),
        ("a prompt of floats", rows.float(), {}, "should be int64 [B, S], found torch.float32"),
        ("a mask of another shape", rows, {"attention_mask": short}, "found [2, 2]"),
        ("a mask of other numbers", rows, {"attention_mask": rows * 2}, "1 at tokens and 0 at"),
        ("a mask that hides a whole row", rows, {"attention_mask": nothing}, "1 of 2 is empty"),
        ("a mask that is a list", rows, {"attention_mask": [[1]]}, "found list"),
        ("no new token", [1], {"max_new_tokens": 0}, "at least 1, found 0"),
        ("2.5 new tokens", [1], {"max_new_tokens": 2.5}, "should consist of integers"),
        ("pieces of 1.5 tokens", [1], {"prefill_chunk": 1.5}, "prefill_chunk should consist of"),
        ("a temperature in words", [1], {"temperature": "hot"}, "should be a number, found 'hot'"),
        ("a temperature of NaN", [1], {"temperature": float("nan")}, "positive number, found nan"),
        ("a seed of 1.5", [1], {"seed": 1.5}, "seed should consist of integers"),
        ("a stop token that is no list", [1], {"stop": 3}, "a collection of ids, found 3"),
    )
    for title, prompt, options, says in prompts:
        yield Case(group, title, generated(prompt, options), says)


def _weights() -> Iterator[Case]:
    group = "Weights, when the model is compiled"
    nan, infinity = float("nan"), float("inf")
    yield Case(group, "NaN in a weight", lambda s: compiled(s, nan), "weights hold NaN: ")
    yield Case(group, "NaN, with `check_weights=False`",
               lambda s: logits_are_nan(compiled(s, nan, check_weights=False), s),
               right="compiled; its logits are NaN")  # fmt: skip
    yield Case(group, "infinity in a weight",
               lambda s: [n for n in compiled(s, infinity).report.notes if "infinity" in n],
               right="compiled; `report.notes` names the weight")  # fmt: skip
    yield Case(group, "a model on the meta device",
               lambda s: seqmix.compile(on_meta(), s.backend, cache=False),
               "is on the meta device")  # fmt: skip


def _views() -> Iterator[Case]:
    group, same = "Views of memory", "as with a copy"
    for title, change in (
        ("every other number (strides)", lambda t: t.repeat_interleave(2, -1)[..., ::2]),
        ("one row for all (`expand`)", lambda t: t[:1].expand(t.shape)),
        ("an odd address", unaligned),
        ("transposed memory", lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)),
        ("tensors that need gradients",
         lambda t: t.requires_grad_() if t.is_floating_point() else t),
        ("signs that are to be turned",
         lambda t: torch._neg_view(-t) if t.is_floating_point() else t),
    ):  # fmt: skip
        yield Case(group, title, each(change), right=same)


def _padding() -> Iterator[Case]:
    group = "Padding, and numbers that are none"
    row = torch.tensor([[-1, -1, -1], [2, 3, 4]])
    yield Case(group, "a row of nothing but padding", lambda s: of_row_1(s, {"positions": row}),
               right="the other row is not touched, the row's own states stay")  # fmt: skip
    yield Case(group, "nothing but padding", lambda s: states_kept(s, row[:1].expand(2, 3)),
               right="the states stay")  # fmt: skip
    yield Case(group, "NaN in the states of a row", nan_in_row_0,
               right="NaN in the logits of that row, and in no other")  # fmt: skip
    yield Case(group, "positions that go back", run_with({"positions": lambda t: t - 2}),
               right="a token sees those before it by position")  # fmt: skip
