"""The tvm backend: the graph becomes Relax and TIR, and the result is one shared library."""

from seqmix_tvm.backend import TvmBackend

__all__ = ["TvmBackend"]
