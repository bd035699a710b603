"""linear_attention at one size: torch's chunkwise form, and ONNX Runtime's operators, in turn.

Besides seqmix's own eager form there is the usual one, a loop over the chunks of 64 tokens in
torch, for what a model without seqmix would do.

    python benchmarks/linear_attention.py [--length 2048] [--rounds 15] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from decode import show, summarize
from measuring import in_turn, write
from torch import Tensor, nn

from seqmix.ops import linear_attention

HEADS, KEY, VALUE = 4, 64, 128


class Mixer(nn.Module):
    """The op alone."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        """Shapes as in the op."""
        return linear_attention(q, k, v, g, s)


def main() -> None:
    """Measure, print a table, and write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    with torch.inference_mode():
        for length in (args.length, 1):
            given = operands(length)
            contestants: dict[str, Callable[[], Any]] = {
                "torch loop over chunks": partial(loop_over_chunks, *given),
                "seqmix torch": partial(linear_attention, *given),
                **onnx_forms(given, args.threads),
            }
            rows += summarize(f"S={length}", in_turn(contestants, args.rounds), length)
    show(rows)
    write(rows, args.out / "linear_attention.csv")


def operands(length: int) -> tuple[Tensor, ...]:
    """Small random queries, keys and values, decays near 1, an empty state."""
    torch.manual_seed(0)
    q, k, v = (0.1 * torch.randn(1, HEADS, length, n) for n in (KEY, KEY, VALUE))
    return q, k, v, -0.1 * torch.rand(1, HEADS, length), torch.zeros(1, HEADS, KEY, VALUE)


def loop_over_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> Tensor:
    """The chunkwise form as it is usually written: every chunk in turn."""
    parts = []
    for at in range(0, q.shape[2], 64):
        qc, kc, vc, total = (x[:, :, at : at + 64] for x in (q, k, v, g))
        total = total.cumsum(-1)
        gap = total.unsqueeze(-1) - total.unsqueeze(-2)
        scores = (qc @ kc.mT) * gap.exp().tril()
        parts.append(scores @ vc + (qc * total.exp().unsqueeze(-1)) @ state)
        left = (total[..., -1:] - total).exp().unsqueeze(-1)
        state = state * total[..., -1, None, None].exp() + (kc * left).mT @ vc
    return torch.cat(parts, 2)


def onnx_forms(given: tuple[Tensor, ...], threads: int) -> dict[str, Callable[[], Any]]:
    """One file per form, each run on the same tensors."""
    forms: dict[str, dict[str, Any]] = {
        "onnxruntime": {},
        "onnxruntime opset 27": {"opset": 27, "contrib": False},
        "onnxruntime opset 23": {"opset": 23, "contrib": False},
    }
    return {name: session(given, {"threads": threads, **form}) for name, form in forms.items()}


def session(given: tuple[Tensor, ...], options: dict[str, Any]) -> Callable[[], Any]:
    """The op, captured and compiled for ONNX Runtime; a file for every length."""
    import onnxruntime

    from seqmix.capture import capture_function
    from seqmix.choose import BackendLegality
    from seqmix.weights import Weights
    from seqmix_ir.passes import lower
    from seqmix_onnxruntime.backend import OnnxRuntimeBackend
    from seqmix_onnxruntime.form import form_of
    from seqmix_onnxruntime.interface import Interface
    from seqmix_onnxruntime.model_file import MODEL, make_model, write_models

    names, token = ["q", "k", "v", "g", "s"], (None, None, "S", None)
    captured = capture_function(
        Mixer(),
        [x[:, :, :5] if i < 4 and x.shape[2] > 5 else x for i, x in enumerate(operands(5))],
        input_names=names,
        output_names=["y", "next"],
        dynamic=[token, token, token, token[:3], None],
    )
    module, _ = lower(captured.module, BackendLegality(OnnxRuntimeBackend(options), "cpu"))
    graph = module.graphs[0]
    made = make_model(graph, Interface.plain(graph), Weights({}), {}, form_of(options))
    folder = Path(tempfile.mkdtemp(prefix="seqmix-benchmark-"))
    write_models({MODEL: made}, folder, 1 << 30)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options["threads"]
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    running = onnxruntime.InferenceSession(
        folder / MODEL, settings, providers=["CPUExecutionProvider"]
    )
    feeds = {name: x.numpy() for name, x in zip(names, given, strict=True)}
    return lambda: running.run(None, feeds)


if __name__ == "__main__":
    main()
