"""Whole small models trained on the kernels: gradients are those of torch in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tests.backends.triton_kernels  # noqa: F401  # skips without Triton

# A process of its own for each model, as a replaced op stays replaced.
_PROGRAM = """
import sys
import torch
from seqmix.model import Model
from seqmix.config import ModelConfig
from seqmix.ops import cross_entropy
from seqmix_triton.register import register

STEPS = {
    "xlstm": [{"kind": "mlstm", "heads": 2}, {"kind": "slstm", "heads": 2}],
    "base_conv and attention": [
        {"kind": "base_conv", "filter": "short"}, {"kind": "attention", "heads": 2, "head_dim": 16},
    ],
    "rope attention": [
        {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16, "window": 9},
        {"kind": "swiglu", "hidden": 40},
    ],
    "selective attention": [
        {"kind": "selective_attention", "heads": 2, "head_dim": 16, "selection": "random"},
    ],
}
torch.manual_seed(0)
name = sys.argv[1]
model = Model(ModelConfig.model_validate({
    "vocab_size": 31, "width": 32, "context_length": 64, "head_dim": 16,
    "position": {"kind": "rope"}, "blocks": [{"steps": STEPS[name]}],
}))
ids = torch.randint(0, 31, (2, 18))
positions = torch.arange(17).repeat(2, 1)
positions[1, :4] = -1
positions[1, 4:] = torch.arange(13)

def gradients(dtype):
    model.to(dtype).zero_grad()
    logits, _ = model(ids[:, :-1], positions)
    asked = torch.where(positions >= 0, ids[:, 1:], -1)
    cross_entropy(logits.flatten(0, 1), asked.flatten()).mean().backward()
    return {n: p.grad.double().clone() for n, p in model.named_parameters() if p.grad is not None}

expected = gradients(torch.float64)
register("cpu")
found = gradients(torch.float32)
assert found.keys() == expected.keys()
largest = max(g.abs().max().item() for g in expected.values())
print(max((found[n] - g).abs().max().item() for n, g in expected.items()) / largest)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["rope attention", "base_conv and attention", "xlstm", "selective attention"]
)
def test_gradients_of_a_model(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-5
