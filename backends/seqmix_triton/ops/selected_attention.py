"""``seqmix::selected_attention``: the attention kernels on the selected queries.

Their positions come with them, so that the kernels see queries anywhere in the sequence.
"""

from __future__ import annotations

from functools import partial

from seqmix.ops.selected_attention import selected_backward, selected_forward
from seqmix_triton.ops.attention import attention_backward, attention_forward

__all__ = ["selected_attention_backward", "selected_attention_forward"]

selected_attention_forward = partial(selected_forward, attention_forward)
"""The result ``[B, H, S, V]``, and the logs of the denominators of the selected ``[B, H, N]``."""

selected_attention_backward = partial(selected_backward, attention_backward)
"""Gradients of q, k, v, bias and sinks."""
