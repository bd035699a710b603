"""What is generated for whole models: memory traffic, and no loop that is left to torch."""

from __future__ import annotations

from typing import Any

import pytest
import tests.backends.triton_kernels  # noqa: F401  # sets the interpreter up, or skips

from seqmix.config import ModelConfig
from seqmix.model import Model
from seqmix_ir.passes import traffic
from seqmix_triton.codegen.generated import Generated
from seqmix_triton.codegen.of_model import lowered_for
from seqmix_xlstm.families import xlstm_block_stack_config

pytestmark = pytest.mark.full

SIZES = {"B": 1, "S": 512, "P": 0}
LEAST_SAVED = 0.4


def config(name: str, steps: list[Any]) -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "name": name, "vocab_size": 64, "width": 64, "context_length": 512, "head_dim": 16,
            "position": {"kind": "rope", "theta": 100.0}, "tie_embeddings": True,
            "blocks": [{"repeat": 2, "steps": steps}],
        }
    )  # fmt: skip


ATTENTION = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
SWIGLU = {"kind": "swiglu", "hidden": 160}
MODELS = {
    "transformer": config("transformer", [ATTENTION, SWIGLU]),
    "xlstm": xlstm_block_stack_config(64, 64, 8, ratio="7:1", heads=2),
    "hyena": config("hyena", [{"kind": "hyena", "filter": {"reference_length": 512}}, SWIGLU]),
    "hybrid": config("hybrid", [{"kind": "mlstm", "heads": 2}, ATTENTION, SWIGLU]),
}


@pytest.mark.parametrize("name", MODELS)
def test_less_is_moved_between_products(name: str) -> None:
    module = lowered_for(Model(MODELS[name]).eval())
    generated = Generated(module)
    assert not generated.refused
    eager = traffic(module, SIZES, eager=True)
    assert traffic(generated.module, SIZES).total <= (1 - LEAST_SAVED) * eager.total
