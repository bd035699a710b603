"""Models of seqmix in the evaluation harness ``lm-eval``."""

__all__: list[str] = []
