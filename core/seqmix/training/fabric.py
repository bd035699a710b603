"""Lightning Fabric as the trainer uses it, imported when it is needed."""

from __future__ import annotations

from typing import Any

from seqmix.errors import ConfigError

__all__ = ["make_fabric"]

INSTALL = 'training needs Lightning Fabric; pip install "seqmix[train]"'


def make_fabric(
    precision: str, *, accelerator: str = "auto", devices: int | str = 1, strategy: Any = "auto"
) -> Any:
    """A fabric for these devices, not launched; ConfigError where Fabric is not installed.

    ``precision`` is that of a plan: the model's own, where nothing is converted, or bf16-mixed.
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

    options: dict[str, Any] = (
        {"plugins": AsItIs()} if precision == "model" else {"precision": precision}
    )
    return Fabric(accelerator=accelerator, devices=devices, strategy=strategy, **options)
