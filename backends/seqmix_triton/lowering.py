"""What a plugin registers as ``triton:<op>`` in the group ``seqmix.lowerings``.

The module of the entry point should import without Triton, as listing plugins imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqmix import registry
from seqmix.errors import PluginError

if TYPE_CHECKING:
    from seqmix_ir.graph import Op
    from seqmix_triton.kernel import Kernel
    from seqmix_triton.run import GraphRun, Rule

__all__ = ["PREFIX", "Kernels", "Lowering", "plugin_kernels"]

PREFIX = "triton:"


@dataclass(frozen=True)
class Kernels:
    """Kernels of an op that a plugin owns: how a graph runs it, and how training does.

    ``rule(run, op, *operands)`` is a :data:`~seqmix_triton.run.Rule`. ``kernels`` are compiled
    ahead of time with all others. ``replaces`` gives, by the names of ops that torch knows
    (``"x"`` and ``"x_backward"``), what they run as on a device once
    :func:`~seqmix_triton.register.register` is called.
    """

    rule: Rule
    kernels: Sequence[Kernel] = ()
    replaces: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowering:
    """What an entry point ``triton:<op>`` names; a plain rule may stand there instead.

    ``load`` imports the kernels when they are first needed.
    """

    load: Callable[[], Kernels]

    def __call__(self, run: GraphRun, op: Op, *operands: Any) -> Any:
        """The results of the op."""
        return self.load().rule(run, op, *operands)


def plugin_kernels() -> Iterator[Kernels]:
    """The kernels of every lowering for this backend; a warning for one that cannot be loaded."""
    for name in registry.names("lowerings"):
        if not name.startswith(PREFIX):
            continue
        try:
            found = registry.get("lowerings", name)
            kernels = found.load() if isinstance(found, Lowering) else None
        except (PluginError, ImportError) as error:
            warnings.warn(f"lowering '{name}': {error}", RuntimeWarning, stacklevel=2)
            continue
        if kernels is not None:
            yield kernels
