"""``seqmix eval repeat``: how much easier random tokens are when they come a second time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from seqmix import Executable

__all__ = ["evaluate_repeat", "repeat_losses"]


def evaluate_repeat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to evaluate.")],
    lengths: Annotated[str, typer.Option(help="Tokens that are repeated, with commas.")] = "16,64",
    rows: Annotated[int, typer.Option(min=1, help="Random rows of each length.")] = 8,
    backend: Annotated[str, typer.Option("--backend", "-b", help="What runs the model.")] = "torch",
    seed: Annotated[int, typer.Option(min=0, help="Of the tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the loss on random tokens with that on the same tokens again (Olsson et al. 2022).

    A model that looks things up in its context finds the second time easy; one that forgets finds
    both equally hard.
    """
    import seqmix
    from seqmix.errors import ConfigError

    try:
        sizes = [int(length) for length in lengths.split(",")]
    except ValueError as error:
        raise ConfigError(f"--lengths should be numbers with commas, found '{lengths}'") from error
    if min(sizes) < 2:
        raise ConfigError(f"--lengths should be at least 2, found {min(sizes)}")
    runner = seqmix.compile(seqmix.resolve(model), backend)
    found = [repeat_losses(runner, size, rows, seed) for size in sizes]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print("length  first  again")
    for row in found:
        print(f"{row['length']:6}  {row['first']:5.3f}  {row['again']:5.3f}")


def repeat_losses(runner: Executable, length: int, rows: int, seed: int) -> dict[str, Any]:
    """Mean loss in nats per token: ``first`` without the first token, ``again`` all of them."""
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(0, runner.config.vocab_size, (rows, length), generator=generator)
    ids = torch.cat([once, once], 1)
    positions = torch.arange(2 * length).expand(rows, -1).contiguous()
    logits, _ = runner(ids, positions)
    losses = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
    first, again = losses[:, : length - 1].mean().item(), losses[:, length - 1 :].mean().item()
    return {"length": length, "first": first, "again": again}
