"""Lightning Fabric as the trainer uses it, imported when it is needed."""

from __future__ import annotations

import inspect
import os
from typing import Any

from seqmix.errors import ConfigError, did_you_mean

__all__ = ["STRATEGIES", "launch_fabric", "make_fabric"]

INSTALL = 'training needs Lightning Fabric; pip install "seqmix[train]"'

STRATEGIES = ("ddp", "fsdp")
"""How several processes share the work: each with a whole model, or with a share of one."""

START = "torchrun --nproc-per-node 2 -m seqmix train ..."


def make_fabric(
    precision: str,
    *,
    accelerator: str = "auto",
    devices: int | str = 1,
    strategy: Any = "auto",
    num_nodes: int = 1,
    environment: Any = None,
) -> Any:
    """A fabric for these devices, not launched; ConfigError where Fabric is not installed.

    ``precision`` is that of a plan: the model's own, where nothing is converted, or bf16-mixed.
    ``environment`` is one of Fabric's cluster environments; by default Fabric looks for itself.
    """
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision import Precision
    except ImportError as error:
        raise ConfigError(INSTALL) from error

    class AsItIs(Precision):
        """Leaves every type as the model has it."""

        def convert_input(self, data: Any) -> Any:
            return data

        def convert_output(self, data: Any) -> Any:
            return data

    plugins = [] if environment is None else [environment]
    options: dict[str, Any] = {"plugins": plugins, "precision": precision}
    if precision == "model":
        options = {"plugins": [AsItIs(), *plugins]}
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        strategy=strategy,
        num_nodes=num_nodes,
        **options,
    )


def launch_fabric(precision: str, strategy: str | None = None) -> Any:
    """A fabric for all processes that a launcher such as torchrun started; one device without it.

    The processes find each other by the environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
    ``MASTER_ADDR`` and others), over NCCL on GPUs and gloo on CPUs. ``strategy`` is one of
    :data:`STRATEGIES`, by default ddp. Raises ConfigError when it cannot be had here.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise ConfigError(
            f"no strategy '{strategy}'{did_you_mean(strategy, STRATEGIES)}; known: "
            f"{', '.join(STRATEGIES)}"
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        fabric = _for_processes(precision, strategy or "ddp")
        fabric.launch()
        return fabric
    if strategy is not None:
        raise ConfigError(
            f"strategy '{strategy}' is for several processes, and there is one; start more: {START}"
        )
    return make_fabric(precision)


def _for_processes(precision: str, strategy: str) -> Any:
    """A fabric for what the environment says; ConfigError when the devices are too few."""
    try:
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.utilities.exceptions import MisconfigurationException
    except ImportError as error:
        raise ConfigError(INSTALL) from error

    world = int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    try:
        return make_fabric(
            precision,
            devices=here,
            num_nodes=world // here,
            strategy=_strategy(strategy, world),
            environment=TorchElasticEnvironment(),
        )
    except MisconfigurationException as error:
        raise ConfigError(
            f"{here} processes were started here, but there are not as many devices: "
            f"{error}; start fewer, or hide the GPUs to train on CPUs (CUDA_VISIBLE_DEVICES=)"
        ) from error


def _strategy(name: str, world: int) -> Any:
    if name == "ddp":
        from lightning_fabric.strategies.ddp import DDPStrategy

        return DDPStrategy(gradient_as_bucket_view=True, **_keeping_buffers())
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    from seqmix.training.sharding import shard_rest

    return ModelParallelStrategy(shard_rest, data_parallel_size=world, tensor_parallel_size=1)


def _keeping_buffers() -> dict[str, Any]:
    """Buffers are computed alike everywhere and never change, so none is sent in any step."""
    from torch.nn.parallel import DistributedDataParallel

    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: False}
