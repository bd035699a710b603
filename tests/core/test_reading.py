"""Small files are read within bounds of size, depth and length of numbers."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from seqmix.reading import (
    DEPTH,
    DIGITS,
    UnreadableError,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    read_text,
)


def test_what_is_valid_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, -2.5, "é", null, true], "b": {}}', "utf-8")
    assert read_json(tmp_path / "a.json") == {"a": [1, -2.5, "é", None, True], "b": {}}
    assert parse_toml("a = [1, 2]\n[b]\nc = 'x'") == {"a": [1, 2], "b": {"c": "x"}}


@pytest.mark.parametrize("text", ['["\\ud800"]', '{"a\\udfff": 1}'])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    assert parse_json('["\\ud83d\\ude00"]') == ["😀"]
    with pytest.raises(UnreadableError, match="half of a surrogate pair"):
        parse_json(text)


def test_keys_of_many_parts_are_refused() -> None:
    assert parse_toml("a.b.c = 1.5\nd = [0.1, 0.2]")["a"] == {"b": {"c": 1.5}}
    assert len(parse_toml(f"d = [{', '.join(['0.5'] * 500)}]")["d"]) == 500
    for text in ("a." * 70 + "a = 1", "[" + '"a" . ' * 70 + "a]"):
        with pytest.raises(UnreadableError, match="key of more than 64 parts"):
            parse_toml(text)


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_bytes(tmp_path / "a", 10) == b"x" * 10
    with pytest.raises(UnreadableError, match="longer than the 9 bytes"):
        read_bytes(tmp_path / "a", 9)


def test_no_folder_no_pipe_and_nothing_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("", "pipe"):
        with pytest.raises(UnreadableError, match="no regular file"):
            read_text(tmp_path / name)
    with pytest.raises(UnreadableError, match="cannot be read"):
        read_text(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(UnreadableError, match="no UTF-8"):
        read_text(tmp_path / "latin")


@pytest.mark.parametrize("levels", [DEPTH, 100_000])
def test_what_nests_too_deep(levels: int) -> None:
    assert parse_json("[" * (DEPTH - 1) + "]" * (DEPTH - 1))
    for text in ("[" * (levels + 1) + "]" * (levels + 1), '{"a":' * levels + "[]" + "}" * levels):
        with pytest.raises(UnreadableError, match="JSON"):
            parse_json(text)
    with pytest.raises(UnreadableError, match="TOML"):
        parse_toml("a = " + "[" * (levels + 1) + "]" * (levels + 1))


@pytest.mark.parametrize("digits", [DIGITS + 1, 5000])
def test_numbers_too_long(digits: int) -> None:
    assert parse_json("9" * DIGITS) == int("9" * DIGITS)
    with pytest.raises(UnreadableError, match="digits"):
        parse_json(f'{{"a": {"9" * digits}}}')
    with pytest.raises(UnreadableError, match="digits"):
        parse_toml(f"a = {'9' * digits}")


def test_a_key_that_appears_twice() -> None:
    with pytest.raises(UnreadableError, match="the key 'b' appears twice"):
        parse_json('{"a": 1, "b": 2, "c": {}, "b": 3}')


def test_a_key_that_appears_twice_after_many_is_found_in_one_pass() -> None:
    def seconds(count: int) -> float:
        keys = [f'"{number}": 0' for number in range(count)]
        text = "{" + ", ".join([*keys, keys[-1]]) + "}"
        before = time.process_time()
        with pytest.raises(UnreadableError, match=f"the key '{count - 1}' appears twice"):
            parse_json(text)
        return time.process_time() - before

    few = statistics.median(seconds(10_000) for _ in range(5))
    assert seconds(200_000) < 100 * few  # 20 times as many: 400 times as long by their square.
