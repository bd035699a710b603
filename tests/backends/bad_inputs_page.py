"""The page ``docs/bad_inputs.md``: every bad input, what each backend does, and its words.

``python -m tests.backends.bad_inputs_page`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from tests.backends.bad_input_subject import BACKENDS, subject_on
from tests.backends.bad_inputs import Case, cases

from seqmix.errors import IRError, SeqmixError

PAGE = Path(__file__).parents[2] / "docs" / "bad_inputs.md"

HEAD = """# Bad inputs

What happens when a compiled model is given what does not fit. Every backend refuses it in the same
words, before anything is computed, and nothing is changed by a call that is refused: neither the
tensors of the caller, nor the states that `steps` keeps. The tables are made by the tests, which
give each of these inputs to each backend (triton runs in its interpreter) and compare the words.

The model of the tables has a vocabulary of 53, a table of 16 learned positions, and three layers:
attention, attention with a window, linear attention. Errors are `BackendError`; `ConfigError` for
arguments of `generate` and `initial_state`; `IRError` for a graph that is not there.

Token ids and positions are looked at where they lie on a CPU, and by backends that run on the CPU
wherever they lie. A model on a GPU does not look at ids and positions that lie on a GPU: that would
wait for the device at every token. `generate` hands them over from the CPU, so they are checked.
Who keeps them on the GPU must know that they are in range: there torch ends in a device-side
assertion, and a kernel may read what lies beside the table. The numbers of states are never looked
at: NaN there gives NaN in the rows that it belongs to.
"""


def written(words: Mapping[str, str]) -> str:
    """The page, with the words of each case that is refused, by ``group: title``."""
    parts = [HEAD]
    for group, members in groupby(cases(), key=lambda case: case.group):
        parts.append("\n".join(_table(group, list(members), words)))
    return "\n".join(parts)


def _table(group: str, members: list[Case], words: Mapping[str, str]) -> Iterator[str]:
    yield f"## {group}\n"
    yield f"| input | {' | '.join(BACKENDS)} | answer |"
    yield "|---" * (len(BACKENDS) + 2) + "|"
    for case in members:
        marks = ["refused" if case.says and b in case.only else "runs" for b in BACKENDS]
        yield f"| {' | '.join([case.title, *marks, _answer(case, words)])} |"
    yield ""


def _answer(case: Case, words: Mapping[str, str]) -> str:
    if not case.says:
        return case.right
    said = words[f"{case.group}: {case.title}"].replace("|", "\\|")
    return f"`{said}`" + (f"; {case.right}" if case.right else "")


def _words() -> dict[str, str]:
    """What the first backend that refuses says to each case."""
    found = {}
    for case in cases():
        if not case.says:
            continue
        backend = next(b for b in BACKENDS if b in case.only)
        try:
            case.call(subject_on(backend))
        except (SeqmixError, IRError) as error:
            found[f"{case.group}: {case.title}"] = str(error)
    return found


if __name__ == "__main__":
    PAGE.write_text(written(_words()), encoding="utf-8")
