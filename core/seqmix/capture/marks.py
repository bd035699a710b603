"""Marks in a traced graph: where a template branch begins and ends, and where all branches stand.

They are ops for torch.export only: they have shapes, and nothing that could run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BEGIN", "END", "PREFIX", "RESIDUAL"]

PREFIX = "seqmix_capture."
_LIBRARY: Any = torch.library.Library("seqmix_capture", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("begin(Tensor[] inputs, int branch) -> Tensor[]")
_LIBRARY.define("end(Tensor[] outputs, int branch) -> Tensor[]")
_LIBRARY.define("residual(Tensor x) -> Tensor")


def _like(tensors: list[Tensor], branch: int) -> list[Tensor]:
    return [torch.empty_like(t) for t in tensors]


torch.library.register_fake("seqmix_capture::begin", _like, lib=_LIBRARY)
torch.library.register_fake("seqmix_capture::end", _like, lib=_LIBRARY)
torch.library.register_fake("seqmix_capture::residual", torch.empty_like, lib=_LIBRARY)

BEGIN: Any = torch.ops.seqmix_capture.begin.default
END: Any = torch.ops.seqmix_capture.end.default
RESIDUAL: Any = torch.ops.seqmix_capture.residual.default
