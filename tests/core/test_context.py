"""The context of a call: without padding nothing is moved, and nothing comes out otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqmix.branches import mask_padding
from seqmix.context import Context


def context(looked: bool = True) -> Context:
    """Without padding; one that has not looked moves tokens as if there were some."""
    ctx = Context(torch.arange(3, 8).expand(2, -1))
    if not looked:
        ctx._padded = True
    return ctx


def test_without_padding_nothing_is_moved():
    x, tail = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    assert not context().may_be_padded
    for still in (context().compact(x), context().scatter_back(x), mask_padding(x, context())):
        assert still is x
    moved = context(looked=False)
    assert torch.equal(moved.compact(x), x)
    assert torch.equal(moved.scatter_back(x), x)
    assert torch.equal(mask_padding(x, moved), x)
    assert torch.equal(moved.prepend(tail, x), context().prepend(tail, x))


def test_one_token_of_padding_is_enough():
    positions = torch.arange(5).repeat(2, 1)
    positions[1, 3] = -1
    ctx = Context(positions)
    assert ctx.may_be_padded
    x = torch.randn(2, 5, 3)
    back = ctx.scatter_back(ctx.compact(x))
    assert torch.equal(back, mask_padding(x, ctx))
    assert (back[1, 3] == 0).all()


def test_every_valid_token_finds_the_tail_and_the_valid_tokens_before_it():
    """As far back as the tail is long; the tail after is that of the valid tokens alone."""
    positions = torch.tensor([[-1, 0, -1, -1, 1], [-1, -1, -1, -1, -1], [0, 1, 2, 3, 4]])
    ctx, W = Context(positions), 7
    x, tail = torch.randn(3, 5, 2), torch.randn(3, W, 2)
    joined = ctx.prepend(tail, ctx.compact(x))
    assert joined.shape == (3, W + 5, 2)
    for row, valid in enumerate(ctx.valid):
        wanted = torch.cat([tail[row], x[row, valid]])
        assert torch.equal(joined[row, -len(wanted) :], wanted)
        assert torch.equal(joined[row, -W:], wanted[-W:])


def test_a_graph_serves_both():
    """What was traced without padding masks it when it comes."""

    class Masked(nn.Module):
        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            return mask_padding(x, Context(positions))

    x, positions = torch.ones(2, 5, 3), torch.arange(5).repeat(2, 1)
    graph = torch.export.export(Masked(), (x, positions)).module()
    positions[0, 2] = -1
    assert graph(x, positions).sum() == 9 * 3
