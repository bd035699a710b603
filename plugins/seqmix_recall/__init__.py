"""Recall from the context: synthetic tasks, and what comes of them; by name (``"mqar"``)."""

__all__: list[str] = []
