"""What a backend is: a class that says what it can run, compiles programs, and loads them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqmix.errors import BackendError
from seqmix_ir.graph import Module, Op

if TYPE_CHECKING:
    from torch import Tensor

    from seqmix.config import ModelConfig
    from seqmix.model import Model
    from seqmix.weights import Weights

__all__ = ["Availability", "Backend", "Executable", "Program", "Report", "Steps"]


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here: its devices, or the reason why it has none."""

    devices: tuple[str, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.devices)


@dataclass(frozen=True)
class Program:
    """What a backend compiles.

    ``module`` holds the graph ``forward`` (inputs ``input_ids [B, S]``, ``positions [B, S]``, and
    ``state.{layer}.{key}`` of each stateful layer; outputs ``logits`` and the new states under the
    same names), already legalized when it reaches :meth:`Backend.compile`. ``model`` is the torch
    model when there is one.
    """

    module: Module
    weights: Weights
    config: ModelConfig
    model: Model | None = None


@dataclass
class Report:
    """What a compilation did, for people and for ``seqmix explain``."""

    backend: str
    target: str
    native: dict[str, int] = field(default_factory=dict)
    decomposed: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    resources: dict[str, dict[str, int]] = field(default_factory=dict)
    """What each kernel for a GPU takes up: threads of a block, registers, bytes of memory."""


class Executable(ABC):
    """A compiled model. It holds no state of its own: states are arguments and results."""

    config: ModelConfig
    report: Report

    @abstractmethod
    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a graph on torch tensors by input name; results by output name.

        Raises :class:`~seqmix.errors.BackendError` for a missing, unknown, or ill-shaped input
        before anything is computed.
        """

    @abstractmethod
    def save(self, directory: Path | str) -> None:
        """Write everything that ``Backend.load`` needs."""

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """The states before the first token, by ``state.{layer}.{key}``.

        ConfigError for a batch that is none.
        """
        from seqmix.model import initial_states

        return initial_states(self.config, batch)

    def steps(self, states: Mapping[str, Tensor]) -> Steps:
        """Read single tokens from these states on."""
        return Steps(self, states)

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        states: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits ``[B, S, V]`` of int64 ``input_ids [B, S]`` and the states after them."""
        from seqmix.arguments import check_are_tensors, named_inputs

        where = f"compiled '{self.config.name}'"
        check_are_tensors(BackendError, where, input_ids=input_ids, positions=positions)
        if states is None:
            # A batch that is none is refused below, in the words that it would get with states.
            states = self.initial_state(max(input_ids.shape[0], 1) if input_ids.ndim else 1)
        out = self.run("forward", named_inputs(where, input_ids, positions, states))
        return out["logits"], {k: v for k, v in out.items() if k != "logits"}


class Steps:
    """Tokens read one after another: the states are kept here, and belong to nobody else.

    A backend that can do better than to hand states around (memory that stays in place, one
    launch for a whole token) returns its own from :meth:`Executable.steps`.
    """

    def __init__(self, executable: Executable, states: Mapping[str, Tensor]) -> None:
        """Go on from ``states``, by ``state.{layer}.{key}``; they are not changed."""
        from seqmix.arguments import flat_states

        self._executable = executable
        self._states = flat_states(f"compiled '{executable.config.name}'", states)

    def __call__(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Read ``input_ids [B, 1]`` at ``positions [B, 1]``; logits ``[B, 1, V]``.

        They are overwritten by the next call. BackendError for what does not fit; the states are
        then what they were.
        """
        from seqmix.arguments import check_one_token

        check_one_token(f"compiled '{self._executable.config.name}'", input_ids, positions)
        logits, self._states = self._executable(input_ids, positions, self._states)
        return logits

    def states(self) -> dict[str, Tensor]:
        """The states after the tokens so far, as :meth:`Executable.__call__` takes them."""
        return dict(self._states)


class Backend(ABC):
    """A way to run a program. Registered under the entry-point group ``seqmix.backends``."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    api: ClassVar[tuple[int, int]] = (1, 0)
    cached: ClassVar[bool] = True
    """Whether a compilation is worth keeping on disk."""
    automatic: ClassVar[bool] = True
    """Whether ``backend="auto"`` may pick it."""

    @abstractmethod
    def probe(self) -> Availability:
        """Whether the backend's packages and devices are here; must not raise."""

    def configured(self, options: Mapping[str, Any]) -> Backend:
        """The backend as these options make it, where they change what it can run."""
        return self

    @abstractmethod
    def supports(self, op: Op, target: str) -> str | None:
        """None when the op runs natively on the target, else the reason why not."""

    def preferences(self, op: Op, target: str) -> tuple[str, ...]:
        """Styles of decomposition in order of preference, for an op that is not native."""
        return ()

    def default_target(self) -> str:
        """The target that ``target=None`` means."""
        return "cpu"

    def thread_options(self, threads: int) -> dict[str, Any]:
        """The options that make a compiled model use so many threads of a CPU.

        None where torch's number, ``OMP_NUM_THREADS`` or the like decides.
        """
        return {}

    def describe(self, module: Module, save_kernels: Path | None = None) -> list[str]:
        """What is fused in a legal module and generated for it, as notes for ``seqmix explain``.

        The sources of generated kernels are written to the folder ``save_kernels``; BackendError
        where the backend generates none.
        """
        if save_kernels is not None:
            raise BackendError(
                f"backend '{self.name}' writes no kernels to save; leave --save-kernels out, or "
                "use --backend triton"
            )
        return []

    @abstractmethod
    def compile(self, program: Program, target: str, options: Mapping[str, Any]) -> Executable:
        """Make a legalized program runnable; BackendError for unknown options and targets."""

    @abstractmethod
    def load(self, directory: Path) -> Executable:
        """Read what :meth:`Executable.save` wrote."""
