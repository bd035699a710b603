"""Lists on the command line: values with commas between them."""

from __future__ import annotations

from seqmix.errors import ConfigError

__all__ = ["numbers", "whole_numbers"]


def whole_numbers(text: str, option: str) -> list[int]:
    """Whole numbers such as ``2048,4096``; ConfigError names the option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{option} should be whole numbers with commas between them, such as 2048,4096; "
            f"found '{text}'"
        ) from error


def numbers(text: str, option: str) -> list[float]:
    """Numbers such as ``0,0.5,1``; ConfigError names the option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{option} should be numbers with commas between them, such as 0,0.5,1; found '{text}'"
        ) from error
