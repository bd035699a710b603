"""Training: tasks, plans and the loop; needs ``pip install "seqmix[train]"`` for the loop alone."""

__all__: list[str] = []
