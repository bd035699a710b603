"""A whole RWKV-4 model against that of transformers, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqmix.config import BlockConfig, Kind, ModelConfig, NormConfig
from seqmix.model import Model

pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[peers]'")

VOCAB, WIDTH, HIDDEN, LAYERS, EPS = 37, 24, 40, 3, 1e-5


def theirs() -> Any:
    """RwkvForCausalLM with weights that all matter, norms included."""
    from transformers import RwkvConfig, RwkvForCausalLM

    torch.manual_seed(4)
    config = RwkvConfig(
        vocab_size=VOCAB,
        context_length=64,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        layer_norm_epsilon=EPS,
        rescale_every=0,
    )
    model = RwkvForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        spread = 1.0 if name.endswith(("time_decay", "time_first")) else 0.4
        torch.nn.init.normal_(parameter, mean=0.5 * ("mix" in name or "ln" in name), std=spread)
    return model


def ours(weights: dict[str, Tensor]) -> Model:
    """The same model of seqmix."""
    steps: list[Kind | list[Kind]] = [
        Kind(kind="rwkv4_time_mix"),
        Kind(kind="rwkv4_channel_mix", hidden=HIDDEN),
    ]
    config = ModelConfig(
        vocab_size=VOCAB,
        width=WIDTH,
        context_length=64,
        norm=NormConfig(kind="layer", eps=EPS),
        blocks=[BlockConfig(repeat=LAYERS, steps=steps)],
    )
    model = Model(config).eval()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    named = mapped(weights)
    model.load_state_dict({name: named[name].reshape(shape) for name, shape in shapes.items()})
    assert named.keys() == shapes.keys()
    return model


def mapped(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights by our names.

    They normalize what the embedding gives. That is done row by row, so it can be done once.
    """
    weight, bias = (weights[f"rwkv.blocks.0.pre_ln.{kind}"] for kind in ("weight", "bias"))
    table = torch.nn.functional.layer_norm(
        weights["rwkv.embeddings.weight"], (WIDTH,), weight, bias, eps=EPS
    )
    found = {"embed.weight": table, "head.weight": weights["head.weight"]}
    parts = {"attention": "mixer", "feed_forward": "mixer", "ln1": "norm", "ln2": "norm"}
    for name, tensor in weights.items():
        _, kind, *rest = name.split(".")
        if kind == "ln_out":
            found[f"norm.{rest[0]}"] = tensor
        elif kind == "blocks" and rest[1] in parts:
            step = 2 * int(rest[0]) + (rest[1] in ("feed_forward", "ln2"))
            found[".".join([f"steps.{step}.branches.0", parts[rest[1]], *rest[2:]])] = tensor
    return found


@pytest.mark.parametrize("pieces", [[13], [1] * 13, [5, 1, 7]])
def test_logits_and_gradients(pieces: list[int]) -> None:
    """At once and in pieces; theirs starts anew and goes through all tokens in a loop."""
    peer = theirs()
    model = ours(dict(peer.state_dict()))
    ids = torch.randint(VOCAB, (2, 13), generator=torch.Generator().manual_seed(5))
    wanted = peer(ids, use_cache=False).logits
    found, states = [], None
    for at, some in zip(torch.tensor(pieces).cumsum(0).tolist(), pieces, strict=True):
        places = torch.arange(at - some, at).expand(2, -1)
        logits, states = model(ids[:, at - some : at], places, states)
        found.append(logits)
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-4, atol=1e-4)
    assert wanted.std() > 0.1
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(6))
    (torch.cat(found, 1) * weight).sum().backward()
    (wanted * weight).sum().backward()
    # All but those of the embedding, which is normalized in theirs.
    gradients = mapped({name: p.grad for name, p in peer.named_parameters()})
    for name, parameter in model.named_parameters():
        if name != "embed.weight":
            slope = gradients[name].reshape(parameter.shape)
            torch.testing.assert_close(parameter.grad, slope, rtol=1e-3, atol=1e-3, msg=name)
