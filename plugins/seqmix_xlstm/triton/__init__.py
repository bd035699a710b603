"""The mLSTM cell on the backend ``triton``: kernels, forward and backward, for training too.

It is reached by the entry point ``triton:xlstm.mlstm`` in the group ``seqmix.lowerings``; nothing
else of this plugin imports it.
"""

__all__: list[str] = []
