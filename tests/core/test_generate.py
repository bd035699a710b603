"""Generation against full forwards, in batches of different lengths, on every kind of runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.core import tiny
from tests.mixers import GatedCell, ShortConv
from torch import Tensor, nn

import seqmix
from seqmix import registry
from seqmix.backend import Executable, Program
from seqmix.compile import program_of
from seqmix.errors import ConfigError
from seqmix.generate import generate, generate_all
from seqmix.model import Model
from seqmix.position import PositionEncoding
from seqmix.prompts import learned_positions

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]
SAMPLING: dict[str, Any] = {
    "temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.2,
}  # fmt: skip
STEPS: list[Any] = [
    tiny.WINDOW,
    tiny.ATTENTION,
    {"kind": "cell_here"},
    {"kind": "conv_here"},
    tiny.SWIGLU,
]


@pytest.fixture(scope="module")
def model() -> Model:
    """Attention, a window, and branches without a state."""
    return tiny.model(dtype="f64")


@pytest.fixture(scope="module")
def mixed() -> Iterator[Model]:
    """Every kind of state: one that grows, a recurrent one, and the tail of a convolution."""
    with (
        registry.register_local("mixers", "cell_here", GatedCell),
        registry.register_local("mixers", "conv_here", ShortConv),
    ):
        yield tiny.model(dtype="f64", tie_embeddings=False, blocks=[{"steps": STEPS}])


@pytest.fixture(scope="module")
def program(mixed: Model) -> Program:
    """What is compiled of it."""
    return program_of(mixed)


@pytest.fixture(scope="module")
def compiled(program: Program) -> Executable:
    """The same behind the interface of an executable."""
    return seqmix.compile(program, backend="torch")


@pytest.fixture(scope="module")
def plain() -> Program:
    """A float32 model, for backends that have nothing else."""
    return program_of(tiny.model())


def argmax_of_full_forwards(model: Model, prompt: list[int], count: int) -> list[int]:
    row = list(prompt)
    for _ in range(count):
        logits, _ = model(torch.tensor([row]), torch.arange(len(row)).unsqueeze(0))
        row.append(int(logits[0, -1].argmax()))
    return row[len(prompt) :]


class Recorder(Executable):
    """Runs an executable, and keeps the positions that it got and the last logits of each call."""

    def __init__(self, inner: Executable) -> None:
        self.inner = inner
        self.config, self.report = inner.config, inner.report
        self.positions: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.states: list[Mapping[str, Tensor]] = []

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        out = self.inner.run(graph, inputs)
        self.positions.append(inputs["positions"])
        self.logits.append(out["logits"][:, -1])
        self.states.append({name: out[name] for name in out if name != "logits"})
        return out

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        return self.inner.initial_state(batch)

    def save(self, directory: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("chunk", [None, 1, 2, 5, 7, 99])
def test_greedy_is_the_argmax_of_full_forwards(model: Model, chunk: int | None) -> None:
    expected = argmax_of_full_forwards(model, PROMPTS[0], 12)
    assert list(generate(model, PROMPTS[0], max_new_tokens=12, prefill_chunk=chunk)) == expected
    assert len(set(expected)) > 2, "a constant continuation tests nothing"


@pytest.mark.parametrize("chunk", [None, 3])
def test_prompts_of_different_lengths(mixed: Model, chunk: int | None) -> None:
    expected = [argmax_of_full_forwards(mixed, prompt, 8) for prompt in PROMPTS]
    assert generate_all(mixed, PROMPTS, max_new_tokens=8, prefill_chunk=chunk) == expected


@pytest.mark.parametrize("sampling", [{}, SAMPLING], ids=["greedy", "drawn"])
def test_a_row_in_a_batch_is_that_row_alone(compiled: Executable, sampling: dict[str, Any]) -> None:
    """Tokens exactly, and float64 logits to 1e-9, also after other rows have ended."""
    limits, stops = [9, 4, 12], [[], [], [41]]
    batch = Recorder(compiled)
    rows = generate_all(
        batch, PROMPTS, max_new_tokens=limits, stop=stops, seed=11, prefill_chunk=4, **sampling
    )
    assert [len(row) for row in rows[:2]] == [9, 4]
    assert len({tuple(row[:4]) for row in rows}) == 3
    for row, (prompt, limit, stop) in enumerate(zip(PROMPTS, limits, stops, strict=True)):
        alone = Recorder(compiled)
        options = {"max_new_tokens": limit, "stop": stop, "seed": 11, "rows": [row], **sampling}
        assert list(generate(alone, prompt, **options)) == rows[row]
        # The batch reads its longest prompt, of seven tokens, in two pieces.
        for ours, theirs in zip(batch.logits[1:], alone.logits, strict=False):
            torch.testing.assert_close(ours[row], theirs[0], atol=1e-9, rtol=1e-9)


def test_draws_do_not_depend_on_the_batch(model: Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 10, "seed": 4, **SAMPLING}
    whole = generate_all(model, PROMPTS, **options)
    assert generate_all(model, PROMPTS[::-1], rows=[2, 1, 0], **options) == whole[::-1]
    assert generate_all(model, PROMPTS[1:], rows=[1, 2], **options) == whole[1:]
    # The same prompt twice: two rows, two streams.
    first, second = generate_all(model, [PROMPTS[0]] * 2, **options)
    assert first == whole[0] != second


def test_a_row_that_has_ended_is_padding_and_keeps_its_state(compiled: Executable) -> None:
    runner = Recorder(compiled)
    rows = generate_all(runner, PROMPTS, max_new_tokens=[2, 6, 6])
    assert [len(row) for row in rows] == [2, 6, 6]
    assert [step[0].tolist() for step in runner.positions[1:]] == [[7], [-1], [-1], [-1], [-1]]
    assert [step[1].tolist() for step in runner.positions[1:]] == [[1], [2], [3], [4], [5]]
    fixed = [name for name in runner.states[1] if name.endswith(("hidden", "tail"))]
    assert fixed
    for name in fixed:
        assert torch.equal(runner.states[-1][name][0], runner.states[1][name][0])
        assert not torch.equal(runner.states[-1][name][1], runner.states[1][name][1])
    (grown,) = {len(s[0]) for n, s in runner.states[-1].items() if n.endswith("1.key_positions")}
    kept = runner.states[-1]["state.1.key_positions"][0]
    assert int((kept >= 0).sum()) == 8 < grown


def test_stops(model: Model) -> None:
    free = generate_all(model, PROMPTS, max_new_tokens=9)
    stop = free[0][2]
    cut = [row[: row.index(stop)] if stop in row else row for row in free]
    assert generate_all(model, PROMPTS, max_new_tokens=9, stop=[stop]) == cut
    assert cut[0] != free[0]
    steps = list(generate(model, PROMPTS, max_new_tokens=9, stop={stop}))
    assert [step[0] for step in steps] == cut[0] + [None] * (len(steps) - len(cut[0]))
    one = generate_all(model, PROMPTS, max_new_tokens=9, stop=[[stop], (), set()])
    assert one == [cut[0], *free[1:]]
    assert list(generate(model, PROMPTS[1], max_new_tokens=5, stop=[free[1][0]])) == []


@pytest.mark.parametrize("name", ["torch", "reference", "onnxruntime"])
def test_every_executable_gives_the_same(plain: Program, name: str) -> None:
    model = plain.model
    if not registry.get("backends", name)().probe():
        pytest.skip(f"backend '{name}' is not available here")
    executable = seqmix.compile(plain, backend=name, cache=False)
    options: dict[str, Any] = {"max_new_tokens": [6, 3, 5], "stop": [[], [9], []]}
    expected = generate_all(model, PROMPTS, **options)
    assert generate_all(executable, PROMPTS, prefill_chunk=3, **options) == expected
    drawn = {**options, **SAMPLING, "seed": 2}
    assert generate_all(executable, PROMPTS, **drawn) == generate_all(model, PROMPTS, **drawn)


def test_a_judge_in_float64(mixed: Model, program: Program) -> None:
    judge = seqmix.compile(program, backend="reference", options={"judge": True})
    expected = generate_all(mixed, PROMPTS, max_new_tokens=4)
    assert generate_all(judge, PROMPTS, max_new_tokens=4) == expected


def padded(side: str, junk: int) -> tuple[Tensor, Tensor]:
    """The prompts as a tensor with its mask."""
    ids, mask = torch.full((3, 7), junk), torch.zeros(3, 7, dtype=torch.int64)
    for row, prompt in enumerate(PROMPTS):
        place = slice(7 - len(prompt), 7) if side == "left" else slice(0, len(prompt))
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_tensor(model: Model, side: str) -> None:
    expected = generate_all(model, PROMPTS, max_new_tokens=4)
    ids, mask = padded(side, junk=-100)
    assert generate_all(model, ids, attention_mask=mask, max_new_tokens=4) == expected
    assert generate_all(model, ids, attention_mask=mask.bool(), max_new_tokens=4) == expected


def test_a_tensor_without_padding(model: Model) -> None:
    prompt = torch.tensor([PROMPTS[0][:3], PROMPTS[2]])
    expected = generate_all(model, prompt.tolist(), max_new_tokens=4)
    assert generate_all(model, prompt, max_new_tokens=4) == expected
    assert generate_all(model, list(prompt), max_new_tokens=4) == expected
    assert list(generate(model, list(prompt[0]), max_new_tokens=4)) == expected[0]


def test_streaming_does_no_work_ahead(model: Model) -> None:
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        stream: Iterator[int] = generate(model, [1, 2], max_new_tokens=5)
        assert len(calls) == 0
        next(stream)
        assert len(calls) == 1
        list(stream)
        assert len(calls) == 5
    finally:
        handle.remove()


def test_a_callback_sees_every_token_in_order(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    rows = generate_all(
        model, PROMPTS, max_new_tokens=[1, 3, 2], on_token=lambda *one: seen.append(one)
    )
    assert [[token for row, token in seen if row == wanted] for wanted in range(3)] == rows
    assert [row for row, _ in seen] == [0, 1, 2, 1, 2, 1]


def test_seeded_draws_repeat(model: Model) -> None:
    def draw(seed: int | None) -> list[list[int]]:
        return generate_all(model, PROMPTS, max_new_tokens=12, temperature=1.5, seed=seed)

    first = draw(7)
    assert first == draw(7)
    assert first != draw(8)
    assert draw(None) != draw(None)


def test_a_penalty_ends_a_repetition(model: Model) -> None:
    plain = list(generate(model, PROMPTS[0], max_new_tokens=30))
    fresh = list(generate(model, PROMPTS[0], max_new_tokens=30, repetition_penalty=1e6))
    assert len(set(plain)) < 30
    assert len({*PROMPTS[0], *fresh}) == len(set(PROMPTS[0])) + 30


class Learned(PositionEncoding):
    """A table with an end."""

    class Config(seqmix.Strict):
        """Its size."""

        max_positions: int

    def __init__(self, config: Config, head_dim: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(config.max_positions, 10)

    def embed(self, positions: Tensor) -> Tensor:
        found: Tensor = self.table(positions.clamp(min=0))
        return found


def test_the_end_of_learned_positions(model: Model) -> None:
    assert learned_positions(model.config) is None
    kind = {"kind": "learned_here", "max_positions": 9}
    with registry.register_local("positions", "learned_here", Learned):
        short = tiny.model(position=kind)
        executable = SimpleNamespace(config=short.config)
        # Of seven tokens and three new ones, the last is never read.
        assert len(list(generate(short, PROMPTS[0], max_new_tokens=3))) == 3
        for runner in (short, executable):
            with pytest.raises(
                ConfigError,
                match=r"prompt 1: 7 tokens and 4 new ones need 10 positions, .* has learned 9;",
            ):
                generate(runner, [[1], PROMPTS[0]], max_new_tokens=[9, 4])
    assert learned_positions(short.config) is None, "a compiled model runs without its plugin"


MASK = torch.ones(1, 2)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one token; prompt 0 of 1 is empty"),
        ([[1], []], {}, "at least one token; prompt 1 of 2 is empty"),
        (torch.zeros(3, dtype=torch.int64), {}, r"should be int64 \[B, S\], .*int64 \[3\]"),
        (torch.zeros(1, 2), {}, r"should be int64 \[B, S\], found torch.float32"),
        (torch.zeros(0, 2, dtype=torch.int64), {}, "at least one token"),
        ([1, 53], {}, r"prompt 0: ids should be in 0\.\.52, found 53 at 1"),
        ([[1], [2, -1]], {}, r"prompt 1: ids should be in 0\.\.52, found -1 at 1"),
        ("hello", {}, "found str; a tokenizer makes ids of text"),
        ([1.5], {}, "prompt 0 should consist of integers"),
        ([[1], 2], {}, "prompt 1 should consist of integers"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens should be at least 1, found 0"),
        ([[1], [2]], {"max_new_tokens": [3, -1]}, "at least 1, found -1"),
        ([[1], [2]], {"max_new_tokens": [3]}, "max_new_tokens has 1 entries for 2 prompts"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens should consist of integers"),
        ([[1], [2]], {"stop": [[3]]}, "stop has 1 entries for 2 prompts"),
        ([[1], [2]], {"stop": [[3], 4]}, "stop should be ids, or one collection"),
        ([1], {"stop": ["x"]}, "stop should be ids|stop should consist of integers"),
        ([[1], [2]], {"rows": [1]}, "rows has 1 numbers for 2 prompts"),
        ([[1]], {"attention_mask": MASK}, "attention_mask belongs to a tensor"),
        (
            torch.ones(1, 3).long(),
            {"attention_mask": MASK},
            r"shape of the prompts \[1, 3\], .*2\]",
        ),
        (torch.ones(1, 2).long(), {"attention_mask": MASK * 2}, "1 at tokens and 0 at padding"),
        (torch.ones(1, 2).long(), {"attention_mask": MASK * 0}, "prompt 0 of 1 is empty"),
        ([1], {"prefill_chunk": 0}, "prefill_chunk should be at least 1, found 0"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"top_k": -1}, "top_k"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"min_p": 2.0}, "min_p"),
        ([1], {"repetition_penalty": 0.0}, "repetition_penalty"),
        ([1], {"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_fail_at_the_call(
    model: Model, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(model, prompt, **{"max_new_tokens": 3, **options})


def test_generate_all_wants_several_prompts(model: Model) -> None:
    one: Any = [1, 2]
    with pytest.raises(ConfigError, match="several prompts are needed"):
        generate_all(model, one, max_new_tokens=3)
