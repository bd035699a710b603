"""Models that are too large for one device: every process holds a share of every weight (FSDP2).

The weights of a branch are brought together when it runs, forward and backward, and given up
behind it; gradients and the optimizer's state are shared out like the weights (Rajbhandari et al.
2020, "ZeRO", stage 3; torch's ``fully_shard``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from seqmix.config import ModelConfig
from seqmix.context import Context
from seqmix.dtypes import torch_dtype
from seqmix.model import Branch, Model
from seqmix.storage import model_from_weights
from seqmix.weights import Weights

__all__ = ["build_model", "in_one_piece", "is_sharded", "shard_rest", "whole_model"]

DATA = "data_parallel"
"""What Fabric calls the axis of its mesh of devices over which data and weights are shared out."""


def build_model(config: ModelConfig, fabric: Any) -> Model:
    """A fresh model; under FSDP each branch is shared out as soon as it has its weights.

    So no process ever holds more than its share and one step of branches (and the embedding and
    the head), and the weights are bit for bit those of a model that is built in one piece.
    """
    mesh = getattr(fabric.strategy, "device_mesh", None)
    if mesh is None:
        return Model(config)
    with _branches_sharded(mesh[DATA], torch_dtype(config.dtype)):
        return Model(config)


def shard_rest(module: nn.Module, mesh: Any) -> nn.Module:
    """Share out what belongs to no branch: embedding, head, last norm; Fabric calls it."""
    from torch.distributed.fsdp import fully_shard

    # It warns of writing into what a branch returns, which no model does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    fully_shard(module, mesh=mesh[DATA])
    return module


def is_sharded(model: nn.Module) -> bool:
    """Whether processes hold shares of the weights."""
    # Asked of every training: to import the class would cost each of them a second.
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def in_one_piece(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all processes, each of which must ask; others as they are."""
    collect: Callable[[], Tensor] = getattr(tensor, "full_tensor", lambda: tensor)
    return collect()


@torch.no_grad()
def whole_model(model: Model, first: bool) -> Model | None:
    """A model in one piece: itself, or collected tensor by tensor in the first process's memory.

    Every process must call it; those that are not the first get None.
    """
    if not is_sharded(model):
        return model if first else None
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        whole = in_one_piece(tensor)
        if first:
            tensors[name] = whole.cpu()
    return model_from_weights(model.config, Weights.of_tensors(tensors)) if first else None


@contextmanager
def _branches_sharded(mesh: Any, dtype: torch.dtype) -> Iterator[None]:
    """Share out every branch when the model takes it in; torch calls at each such moment."""

    def take_in(_: nn.Module, __: str, child: nn.Module | None) -> None:
        if isinstance(child, Branch) and not is_sharded(child):
            _shard_branch(child, mesh, dtype)

    handle = register_module_module_registration_hook(take_in)
    try:
        yield
    finally:
        handle.remove()


def _shard_branch(branch: Branch, mesh: Any, dtype: torch.dtype) -> None:
    """Share out a branch in the model's type: a share cannot change its type afterwards."""
    from torch.distributed.fsdp import fully_shard

    for parameter in branch.parameters():
        parameter.data = parameter.data.to(dtype)
    losses = _AuxiliaryLosses()
    branch.register_forward_pre_hook(losses.before)
    branch.register_forward_hook(losses.join)
    fully_shard(branch, mesh=mesh)
    branch.register_forward_hook(losses.part)


class _AuxiliaryLosses:
    """Shows a branch's auxiliary losses to FSDP, which brings weights back for outputs it has seen.

    Branches put them into the context, where FSDP does not look: without this the backward pass
    of such a loss would meet weights that are no longer there. Hooks run in the order in which
    they were registered, FSDP's own between :meth:`join` and :meth:`part`.
    """

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._before = 0

    def before(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        """Count the losses of earlier branches."""
        self._before = len(_context(args).aux_losses)

    def join(self, _: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output, and the branch's own losses behind it."""
        return (*output, _context(args).aux_losses[self._before :])

    def part(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        """The output as the branch gave it."""
        return output[:-1]


def _context(args: tuple[Any, ...]) -> Context:
    """The context is the last of what a model hands to a branch."""
    context: Context = args[-1]
    return context
