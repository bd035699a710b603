"""Docstrings name things by roles such as ``:class:`State```; on the site they are code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([^`]+)`")
_DOUBLE = re.compile(r"``([^`]+)``")


class DocstringRoles(griffe.Extension):
    """Rewrites roles and double back-quotes of every docstring as Markdown's code spans."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _DOUBLE.sub(r"`\1`", text)
