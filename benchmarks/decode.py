"""Tokens per second of one model, implementation by implementation, in turn, in one run.

The floor is ONNX Runtime multiplying [1, K] by [K, N] over the same weights, and nothing else: no
implementation that reads every weight once per token can be faster. Every figure is a median over
rounds in which all contestants take their turn, so that a busy machine disturbs all of them alike.

    python benchmarks/decode.py [--past 512] [--rounds 15] [--tokens 4] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from measuring import in_turn, write

TEXT = Path(__file__).parent.parent / "tests" / "golden" / "text" / "river.txt"


def main() -> None:
    """Measure, print a table, and write it as CSV."""
    args = parse_arguments()
    with torch.inference_mode():
        checkpoint, model, executable = load(args.threads)
        ids = prompt_ids(checkpoint, args.past + 1)
        contestants = decode_contestants(checkpoint, model, executable, ids, args.past)
        decode = in_turn(contestants, args.rounds)
        prompts = prefill_contestants(model, executable, ids[: args.past])
        prefill = in_turn(prompts, args.prefill_rounds)
    rows = summarize("decode", decode, 1) + summarize("prefill", prefill, args.past)
    show(rows)
    write(rows, args.out / "decode.csv")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    formatter = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--past", type=int, default=512, help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=25, help="turns of each contestant")
    parser.add_argument("--prefill-rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def load(threads: int) -> tuple[Any, Any, Any]:
    """The checkpoint, the torch model and the ONNX Runtime executable."""
    import seqmix
    from seqmix.checkpoint import resolve
    from seqmix.model import Model

    torch.set_num_threads(threads)
    checkpoint = resolve("smollm2")
    model = Model.from_checkpoint(checkpoint)
    executable = seqmix.compile(model, backend="onnxruntime", options={"threads": threads})
    return checkpoint, model, executable


def prompt_ids(checkpoint: Any, count: int) -> list[int]:
    """The first ``count`` tokens of a natural text."""
    text = TEXT.read_text(encoding="utf-8")
    ids: list[int] = checkpoint.tokenizer.encode(text)
    while len(ids) < count:
        ids = ids + ids
    return ids[:count]


def decode_contestants(
    checkpoint: Any, model: Any, executable: Any, ids: list[int], past: int
) -> dict[str, Callable[[], Any]]:
    """One step at ``past`` cached tokens, by contestant; each is warm."""
    from seqmix.model import flatten_states, initial_states, unflatten_states

    prompt, token = torch.tensor([ids[:past]]), torch.tensor([[ids[past]]])
    positions, here = torch.arange(past).unsqueeze(0), torch.tensor([[past]])
    states = unflatten_states(model, initial_states(model, 1))
    _, after = model(prompt, positions, states)
    flat = flatten_states(model, after)
    return {
        "floor": bare_matmuls(model),
        "seqmix onnxruntime": lambda: executable(token, here, flat),
        "seqmix torch": lambda: model(token, here, after),
        **peers(checkpoint, model, prompt, token),
    }


def peers(checkpoint: Any, model: Any, prompt: Any, token: Any) -> dict[str, Callable[[], Any]]:
    """The same step in transformers, when it is installed."""
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: its row is missing (pip install '.[peers]')")
        return {}
    from seqmix_checkpoints.families import to_transformers

    network = to_transformers(transformers, checkpoint.config, model)
    cache = network(prompt, use_cache=True).past_key_values
    length = cache.get_seq_length()

    def step() -> Any:
        out = network(token, past_key_values=cache, use_cache=True)
        cache.crop(length - cache.get_seq_length())
        return out

    return {"transformers eager": step}


def bare_matmuls(model: Any) -> Callable[[], Any]:
    """ONNX Runtime MatMuls over every matrix of the model, one after the other."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    matrices = [p.detach().numpy() for p in model.parameters() if p.ndim == 2]
    nodes, weights, inputs, feeds = [], [], [], {}
    for i, matrix in enumerate(matrices):
        size = matrix.shape[1]
        name = f"x{size}"
        if name not in feeds:
            feeds[name] = np.ones((1, size), np.float32)
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]))
        weights.append(numpy_helper.from_array(np.ascontiguousarray(matrix.T), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [f"y{i}"]))
    outputs = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, m.shape[0]])
        for i, m in enumerate(matrices)
    ]
    graph = helper.make_graph(nodes, "floor", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Spinning threads would disturb the contestant whose turn is next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        onnx.ModelProto.SerializeToString(proto), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds)


def prefill_contestants(
    model: Any, executable: Any, ids: list[int]
) -> dict[str, Callable[[], Any]]:
    """The whole prompt at once, from an empty state."""
    from seqmix.model import initial_states, unflatten_states

    prompt, positions = torch.tensor([ids]), torch.arange(len(ids)).unsqueeze(0)
    states = unflatten_states(model, initial_states(model, 1))
    return {
        "seqmix onnxruntime": lambda: executable(prompt, positions),
        "seqmix torch": lambda: model(prompt, positions, states),
    }


def summarize(phase: str, seconds: dict[str, list[float]], tokens: int) -> list[dict[str, str]]:
    """One row per contestant: milliseconds and tokens per second at the median."""
    rows = []
    for name, turns in seconds.items():
        median = statistics.median(turns)
        rows.append(
            {
                "phase": phase,
                "implementation": name,
                "median_ms": f"{median * 1e3:.2f}",
                "min_ms": f"{min(turns) * 1e3:.2f}",
                "tokens_per_second": f"{tokens / median:.1f}",
            }
        )
    return rows


def show(rows: list[dict[str, str]]) -> None:
    """Print the rows under each other."""
    for row in rows:
        print(
            f"{row['phase']:8} {row['implementation']:22} {row['median_ms']:>9} ms (min "
            f"{row['min_ms']:>8}) {row['tokens_per_second']:>8} tokens/s"
        )


if __name__ == "__main__":
    main()
