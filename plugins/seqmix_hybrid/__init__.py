"""Softmax attention and its relatives as sequence mixers; reached by name (``"attention"``)."""

__all__: list[str] = []
