"""The backends that belong to the core: the reference interpreter and eager torch."""

__all__: list[str] = []
