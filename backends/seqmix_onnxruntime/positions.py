"""Where the file's way of counting the past would give another result than the graph's.

The graph is told the position of every slot of the past, the file counts the slots that its mask
sets. Whoever runs the file with the graph's states is told when the two do not mean the same.

B batch, P past slots, S new tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqmix.errors import BackendError

__all__ = ["check_past_positions"]


def check_past_positions(past: Tensor, positions: Tensor, *, by_order: bool) -> None:
    """BackendError unless the file may count the past ``[B, P]`` itself.

    It may where a row's positions are 0, 1, 2 and so on. ``by_order`` says that the graph asks only
    which of two tokens comes first; then it may also where the positions rise from slot to slot and
    the new ones ``[B, S]`` come after.
    """
    valid = past >= 0
    counted = valid.to(torch.int64).cumsum(1) - 1
    if torch.equal(torch.where(valid, past, -1), torch.where(valid, counted, -1)):
        return
    if by_order and _rises(past, valid, positions):
        return
    row = int(torch.nonzero((past != counted) & valid)[0, 0])
    wanted = "rise from slot to slot, before the new ones" if by_order else "be 0, 1, 2, .."
    raise BackendError(
        f"row {row} of the past has positions {_shown(past[row])}; the exported file counts the "
        f"past by its mask, so they must {wanted} (padding is -1): use the states of one sequence, "
        "or run it on another backend"
    )


def _rises(past: Tensor, valid: Tensor, positions: Tensor) -> bool:
    """Whether the positions that are not padding rise in each row, up to the first new one."""
    before = torch.where(valid, past, -1)
    highest = before.cummax(1).values
    follows = torch.cat([torch.full_like(highest[:, :1], -1), highest[:, :-1]], dim=1)
    new = torch.where(positions >= 0, positions, torch.iinfo(torch.int64).max).amin(1)
    return bool(((before > follows) | ~valid).all() and (highest[:, -1] < new).all())


def _shown(row: Tensor) -> str:
    numbers = row.tolist()
    return str(numbers) if len(numbers) <= 8 else f"{str(numbers[:8])[:-1]}, ..]"
