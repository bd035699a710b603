"""MQAR sweeps by name: one for a laptop, and those of two papers."""

from __future__ import annotations

from collections.abc import Callable

from seqmix.errors import ConfigError, did_you_mean
from seqmix_recall.mqar_sweep import MQARSweep, Shape
from seqmix_recall.settings import Portion

__all__ = ["PRESETS", "preset"]


def preset(name: str) -> MQARSweep:
    """A sweep by its name; ConfigError for one that is unknown."""
    if name not in PRESETS:
        raise ConfigError(
            f"no preset '{name}'{did_you_mean(name, PRESETS)}; known: {', '.join(PRESETS)}"
        )
    return PRESETS[name]()


def small() -> MQARSweep:
    """Every kind of model on short rows; about an hour on two cores."""
    return MQARSweep(
        mixers=[
            "base_conv+attention",
            "base_conv+learned",
            "based",
            "mlstm",
            "rwkv4",
            "h3",
            "hyena",
            "base_conv",
        ],
        dims=[32, 64],
        shapes=[Shape(length=64, pairs=4)],
        rates=[1e-2],
        vocab_size=256,
        train_rows=20_000,
        test_rows=1_000,
        batch=64,
        steps=1_000,
        stop_at=0.999,
        test_batch=250,
    )


def figure2() -> MQARSweep:
    """Figure 2 of the Zoology paper (Arora et al. 2023): 448 runs, for a machine with GPUs.

    As in its repository at the tag ``iclr24``: attention has two layers, the others four (later
    versions have two throughout: ``--layers 2``). mLSTM stands where Mamba does there. Three things
    differ: no dropout (0.1 there), rows are shuffled, and biases, norms and embeddings do not
    decay; nor does the residual stream get its own norm once more behind each mixer, as their
    identity in place of an MLP gives it.
    """
    return MQARSweep(
        mixers=["attention", "hyena", "rwkv4", "base_conv", "h3", "based", "mlstm"],
        dims=[64, 128, 256, 512],
        shapes=[
            Shape(length=64, pairs=4, batch=512),
            Shape(length=128, pairs=8, batch=512),
            Shape(length=256, pairs=16, batch=256),
            Shape(length=512, pairs=64, batch=128),
        ],
        rates=ZOOLOGY_RATES,
        layers=4,
        layers_of={"attention": 2},
        epochs=64,
        stop_at=0.99,
        clip=None,
    )


def based() -> MQARSweep:
    """Recall against the size of the state, as in the Based paper (Arora et al. 2024, figure 2).

    One training on rows of five shapes, 32 epochs, tested on seven, among them longer rows with
    more pairs than any that was trained on. Rows of a batch are padded to the longest of them. The
    state is that after 1024 tokens.
    """
    return MQARSweep(
        mixers=[
            "short_conv+attention",
            *(f"based:{size}" for size in (8, 16, 24)),
            *(f"short_conv+window:{window}" for window in (8, 32, 128, 512)),
            "hyena",
            "h3:16",
            "mlstm",
        ],
        dims=[64, 128],
        shapes=[Shape(length=64, pairs=4)],
        mixture=[
            Portion(length=128, pairs=8, train_rows=20_000),
            Portion(length=256, pairs=16, train_rows=20_000),
            Portion(length=256, pairs=32, train_rows=20_000),
            Portion(length=256, pairs=64, train_rows=20_000, test_rows=1_000),
            *(Portion(length=64, pairs=pairs, test_rows=1_000) for pairs in (8, 16)),
            Portion(length=128, pairs=32, test_rows=1_000),
            Portion(length=512, pairs=128, test_rows=1_000),
            Portion(length=1024, pairs=256, test_rows=1_000),
        ],
        rates=BASED_RATES,
        test_rows=1_000,
        batch=256,
        test_batch=32,
        epochs=32,
        stop_at=0.99,
        clip=None,
    )


ZOOLOGY_RATES = [round(10 ** (-4 + 2 * i / 3), 10) for i in range(4)]
BASED_RATES = [round(10 ** (-3 + 1.5 * i / 3), 10) for i in range(4)]

PRESETS: dict[str, Callable[[], MQARSweep]] = {
    "small": small,
    "figure2": figure2,
    "based": based,
}
