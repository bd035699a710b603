"""What a backend can run, as the legalizer asks for it, and which one ``"auto"`` means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from seqmix import hooks, registry
from seqmix.backend import Backend
from seqmix.errors import BackendError, PluginError
from seqmix_ir.graph import Module, Op
from seqmix_ir.passes import explain

__all__ = ["BackendLegality", "choose_backend"]


@dataclass(frozen=True)
class BackendLegality:
    """What one backend can run on one target."""

    backend: Backend
    target: str

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.name

    def supports(self, op: Op) -> str | None:
        """None, or the reason why the op is not native."""
        return self.backend.supports(op, self.target)

    def prefer(self, op: Op) -> tuple[str, ...]:
        """Styles of decomposition, best first."""
        return self.backend.preferences(op, self.target)


def choose_backend(module: Module) -> tuple[Backend, list[str]]:
    """The backend for ``"auto"``, and notes that say why it and not another.

    A plugin's hook decides first. Else the first that is available and can run every op: those
    with a GPU before those without, then by name.
    """
    found, refused = _candidates(module)
    if not found:
        reasons = "; ".join(refused) or "none is installed that is chosen by itself"
        raise BackendError(
            f"no backend can run this model here: {reasons}; install another, or ask for one by "
            "its name"
        )
    choice = hooks.choose_backend(module, list(found))
    if choice is not None:
        name, plugin = choice
        return found[name], [f"auto: '{name}', chosen by {plugin}", *refused]
    name = min(found, key=lambda n: (not _has_gpu(found[n]), n))
    why = f"auto: '{name}' on {', '.join(found[name].probe().devices)}; could be {', '.join(found)}"
    return found[name], [why, *refused]


def _candidates(module: Module) -> tuple[dict[str, Backend], list[str]]:
    """Backends that can run the module, by name, and why the others cannot."""
    found: dict[str, Backend] = {}
    refused: list[str] = []
    for name in registry.names("backends"):
        try:
            backend = cast(type[Backend], registry.get("backends", name))()
        except PluginError as error:
            refused.append(f"'{name}' is not usable: {error}")
            continue
        if not backend.automatic:
            continue
        if (reason := _reason_against(backend, module)) is None:
            found[name] = backend
        else:
            refused.append(f"not '{name}': {reason}")
    return found, refused


def _reason_against(backend: Backend, module: Module) -> str | None:
    available = backend.probe()
    if not available:
        return available.reason
    record = explain(module, BackendLegality(backend, backend.default_target()))
    if record.impossible:
        first = record.impossible[0]
        return f"cannot run '{first.op}' at {first.loc}: {first.reason}"
    return None


def _has_gpu(backend: Backend) -> bool:
    return any(device.split(":")[0] in ("cuda", "hip") for device in backend.probe().devices)
