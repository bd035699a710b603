"""RWKV-4 of transformers: time and channel mixing as they run on a CPU, a loop over the tokens."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["installed", "mixer"]


def installed() -> bool:
    """Whether transformers is."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        print("transformers is not installed: its rows are missing (pip install '.[peers]')")
        return False
    return True


def mixer(name: str, width: int, length: int) -> nn.Module:
    """A class of the model, called without a state."""
    from transformers import RwkvConfig
    from transformers.models.rwkv import modeling_rwkv

    config = RwkvConfig(vocab_size=8, hidden_size=width, context_length=length)
    return _WithoutState(getattr(modeling_rwkv, name)(config))


class _WithoutState(nn.Module):
    """The output alone."""

    def __init__(self, inner: nn.Module) -> None:
        """Give the weights values: the classes leave memory as they find it."""
        super().__init__()
        self.inner = inner
        for name, parameter in inner.named_parameters():
            nn.init.normal_(parameter, std=0.05)
            if name.startswith("time_mix"):
                nn.init.constant_(parameter, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``x [B, S, D]``."""
        y: Tensor = self.inner(x)[0]
        return y
