"""The model: embedding, residual steps, final norm, head; built from a configuration.

Sizes: B batch, S sequence, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqmix import registry
from seqmix.arguments import (
    LAST_POSITION,
    check_are_tensors,
    check_batch,
    check_shapes,
    check_states,
    check_tokens,
)
from seqmix.branches import make_norm
from seqmix.config import Kind, ModelConfig, build_config
from seqmix.context import Context
from seqmix.dtypes import torch_dtype
from seqmix.errors import ConfigError
from seqmix.mixer import SequenceMixer
from seqmix.model_size import check_memory
from seqmix.position import PositionEncoding
from seqmix.prompts import learned_positions
from seqmix.state import State, StateSpec, initial_state

if TYPE_CHECKING:
    from seqmix.checkpoint import Checkpoint

__all__ = ["Branch", "Model", "flatten_states", "initial_states", "state_specs", "unflatten_states"]

States = list[State]


class Branch(nn.Module):
    """Norm, then mixer; ``layer`` numbers the branches that have a state."""

    def __init__(self, norm: nn.Module, mixer: SequenceMixer, layer: int | None) -> None:
        """Join the two."""
        super().__init__()
        self.norm = norm
        self.mixer = mixer
        self.layer = layer

    def forward(self, x: Tensor, state: State, ctx: Context) -> tuple[Tensor, State]:
        """What the branch adds to ``x [B, S, D]``, and its state after."""
        out = self.mixer(self.norm(x), state, ctx)
        if not isinstance(out, tuple) or len(out) != 2:
            raise ConfigError(
                f"{type(self.mixer).__name__}.forward returned {type(out).__name__}, expected its "
                "output and its new state: return y, state"
            )
        y, after = out
        return y, after


class Step(nn.Module):
    """Branches that run in parallel on the same input."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        """Keep the order: it is the order in which their outputs are added."""
        super().__init__()
        self.branches = nn.ModuleList(branches)


class Model(nn.Module):
    """A language model with an explicit state.

    Fresh weights come from torch's global generator. The parameters have ``config.dtype``.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Build every part; ConfigError or PluginError for one that does not fit.

        Nothing is built when the weights of all together would not fit into memory.
        """
        super().__init__()
        check_memory(config, lambda kind: _build_mixer(config, kind))
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        nn.init.normal_(self.embed.weight, std=config.init_std)
        self.steps = nn.ModuleList(_build_steps(config))
        self._specs = [b.mixer.state_spec() for b in self.branches() if b.layer is not None]
        self.norm = make_norm(config.norm, config.width)
        self.head: nn.Linear | None = None
        if not config.tie_embeddings:
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)
            nn.init.normal_(self.head.weight, std=config.init_std)
        self.position = _build_position(config)
        known = learned_positions(config)
        self._last_position = LAST_POSITION if known is None else known - 1
        _convert(self, torch_dtype(config.dtype))

    @staticmethod
    def from_checkpoint(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> Model:
        """The model of a checkpoint; CheckpointError lists every weight that does not fit."""
        from seqmix.storage import model_from_weights

        return model_from_weights(checkpoint.config, checkpoint.weights, dtype, checkpoint.source)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        states: Sequence[State] | None = None,
        logits_to_keep: int = 0,
        aux_losses: list[Tensor] | None = None,
    ) -> tuple[Tensor, States]:
        """Logits ``[B, S, V]`` of int64 ``input_ids [B, S]``, and the states after them.

        ``positions`` is int64 ``[B, S]``, -1 at padding. ``states`` has one state per stateful
        branch; None starts from nothing. ``logits_to_keep`` asks for the last logits only, 0 for
        all. ``aux_losses`` gets the scalars that mixers want added to the loss in training, such as
        the sparsity of a learned selection. Raises ConfigError when an argument does not fit.
        """
        where, checks = f"model '{self.config.name}'", not torch.compiler.is_compiling()
        if checks:
            check_are_tensors(ConfigError, where, input_ids=input_ids, positions=positions)
            check_shapes(where, input_ids, positions)
        if states is None:
            states = unflatten_states(self, initial_states(self, input_ids.shape[0]))
        if checks:
            check_states(where, self.state_specs(), input_ids.shape[0], states)
            check_tokens(where, input_ids, positions, self.config.vocab_size, self._last_position)
        x, ctx = self.embedded(input_ids, positions)
        after: States = []
        for step in self.steps:
            total = x
            for branch in cast(Step, step).branches:
                layer = cast(Branch, branch).layer
                y, state = branch(x, {} if layer is None else states[layer], ctx)
                total = total + y
                if layer is not None:
                    after.append(state)
            x = total
        if aux_losses is not None:
            aux_losses.extend(ctx.aux_losses)
        return self.logits(x, logits_to_keep), after

    def embedded(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Context]:
        """The residual stream ``[B, S, D]`` before the first step, and what the branches share."""
        ctx = Context(positions, input_ids=input_ids, encoding=self.position)
        x: Tensor = self.embed(input_ids)
        if self.position is not None and (added := self.position.embed(positions)) is not None:
            x = x + added.to(x.dtype)
        return x, ctx

    def logits(self, x: Tensor, logits_to_keep: int = 0) -> Tensor:
        """The logits of a residual stream ``[B, S, D]``, or of its last places only."""
        x = self.norm(x[:, -logits_to_keep:] if logits_to_keep else x)
        weight = self.embed.weight if self.head is None else self.head.weight
        return _soft_capped(F.linear(x, weight), self.config.logit_soft_cap)

    def branches(self) -> Iterator[Branch]:
        """Every branch in order."""
        for step in self.steps:
            for branch in cast(Step, step).branches:
                yield cast(Branch, branch)

    def state_specs(self) -> list[dict[str, StateSpec]]:
        """The state of every stateful branch, by layer number."""
        return self._specs

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the weights, and so of the states that are not fixed."""
        return self.embed.weight.dtype

    def flops(self, batch_size: int, seq_len: int) -> int:
        """Multiply-adds times two of one forward: the mixers and the head; norms do not count."""
        head = 2 * batch_size * seq_len * self.embed.weight.numel()
        return head + sum(b.mixer.flops(batch_size, seq_len) for b in self.branches())

    def step_flops(self, batch_size: int, past: int) -> int:
        """:meth:`flops` of one more token after ``past`` tokens, as decoding does it."""
        head = 2 * batch_size * self.embed.weight.numel()
        return head + sum(b.mixer.step_flops(batch_size, past) for b in self.branches())

    def parameter_count(self) -> int:
        """The number of weights, tied ones once."""
        return sum(p.numel() for p in self.parameters())


def _soft_capped(logits: Tensor, cap: float) -> Tensor:
    """``cap * tanh(logits / cap)`` in float32 at least, or the logits when the cap is 0."""
    if cap == 0:
        return logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (cap * torch.tanh(wide / cap)).to(logits.dtype)


def initial_states(
    source: ModelConfig | Model,
    batch: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> dict[str, Tensor]:
    """The states before the first token, flat: ``state.{layer}.{key}``.

    Type and device are those of the model, or ``dtype`` of the configuration and the CPU.
    ConfigError for a batch that is none.
    """
    check_batch("initial states", batch)
    if isinstance(source, Model):
        specs, own, here = source.state_specs(), source.dtype, source.embed.weight.device
    else:
        specs = state_specs(source)
        own, here = torch_dtype(source.dtype), torch.device("cpu")
    states = [initial_state(s, batch, dtype=dtype or own, device=device or here) for s in specs]
    return _flatten(states)


def state_specs(config: ModelConfig) -> list[dict[str, StateSpec]]:
    """The state of every stateful branch of a configuration, by layer number; builds no weights."""
    return _specs_of(config.to_json())


def flatten_states(model: Model, states: Sequence[State]) -> dict[str, Tensor]:
    """States by layer as one mapping ``state.{layer}.{key}``, in the order of the specs."""
    return _flatten(
        [
            {key: state[key] for key in s}
            for s, state in zip(model.state_specs(), states, strict=True)
        ]
    )


def unflatten_states(model: Model, flat: Mapping[str, Tensor]) -> States:
    """The inverse of :func:`flatten_states`; ConfigError when a state is missing or unknown."""
    specs = model.state_specs()
    names = [f"state.{layer}.{key}" for layer, spec in enumerate(specs) for key in spec]
    if set(names) != set(flat):
        missing, unknown = sorted(set(names) - set(flat)), sorted(set(flat) - set(names))
        raise ConfigError(
            f"model '{model.config.name}': states do not fit: missing {missing}, unknown {unknown}"
        )
    return [{key: flat[f"state.{layer}.{key}"] for key in spec} for layer, spec in enumerate(specs)]


def _flatten(states: Sequence[State]) -> dict[str, Tensor]:
    return {
        f"state.{layer}.{key}": tensor
        for layer, state in enumerate(states)
        for key, tensor in state.items()
    }


@lru_cache(maxsize=64)
def _specs_of(config_json: str) -> list[dict[str, StateSpec]]:
    """The state specs of a configuration, from mixers that own no memory."""
    config = ModelConfig.model_validate_json(config_json)
    with torch.device("meta"):
        specs = [_build_mixer(config, branch).state_spec() for branch in config.branches()]
    return [spec for spec in specs if spec]


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Give the parameters a type. Tables of encodings and mixers widen with them, never narrow."""
    if dtype == torch.float64:
        model.double()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _build_steps(config: ModelConfig) -> list[Step]:
    steps, layers = [], 0
    for kinds in config.steps():
        branches = []
        for kind in kinds:
            mixer = _build_mixer(config, kind)
            stateful = bool(mixer.state_spec())
            norm = make_norm(config.norm, config.width)
            branches.append(Branch(norm, mixer, layers if stateful else None))
            layers += stateful
        steps.append(Step(branches))
    return steps


def _build_mixer(config: ModelConfig, kind: Kind) -> SequenceMixer:
    turned = _turned_size(config)
    cls = cast(type[SequenceMixer], registry.get("mixers", kind.kind))
    options = build_config(cls.Config, kind.options, f"mixer '{kind.kind}'")
    try:
        mixer = cls(options, config.width)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise ConfigError(
            f"mixer '{kind.kind}' cannot be built with these options in a model of width "
            f"{config.width}: {_first_line(error)}"
        ) from error
    own = getattr(mixer, "head_dim", turned)
    if config.position is not None and turned is not None and own != turned:
        raise ConfigError(
            f"mixer '{kind.kind}' has head_dim {own}, but position encoding "
            f"'{config.position.kind}' is built for head_dim {turned}; make them equal"
        )
    return mixer


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _turned_size(config: ModelConfig) -> int | None:
    """The size of the vectors that the position encoding rotates; None where nothing is rotated."""
    if config.position is None or _position_class(config.position).built_for == "width":
        return None
    if config.head_dim is None:
        raise ConfigError(
            f"model '{config.name}': position encoding '{config.position.kind}' needs 'head_dim', "
            "the size of the vectors that it rotates; set it next to 'position'"
        )
    return config.head_dim


def _build_position(config: ModelConfig) -> PositionEncoding | None:
    """The encoding; one that rotates has tables that are computed, always in real memory."""
    if config.position is None:
        return None
    kind = config.position
    cls = _position_class(kind)
    options = build_config(cls.Config, kind.options, f"position encoding '{kind.kind}'")
    if cls.built_for == "width":
        return cls(options, width=config.width)
    with torch.device("cpu"):
        return cls(options, head_dim=config.head_dim)


def _position_class(kind: Kind) -> type[PositionEncoding]:
    return cast(type[PositionEncoding], registry.get("positions", kind.kind))
