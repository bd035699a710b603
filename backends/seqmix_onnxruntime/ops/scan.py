"""The loop along one axis, as ONNX Scan."""

from __future__ import annotations

from onnx import helper

from seqmix.errors import BackendError
from seqmix_ir.graph import Op
from seqmix_onnxruntime.emit import Emit, Emitter, tensor_info

__all__ = ["EMITTERS"]


def _scan(e: Emitter, op: Op, inputs: list[str]) -> list[str]:
    """Carries and sequences are Scan's inputs; constants are seen from the outer graph."""
    a = op.defn.attributes()
    carries, sequences, axis = a["carries"], a["sequences"], a["axis"]
    looped = carries + sequences
    outputs = len(op.results) - carries
    backwards = int(a["reverse"])
    # An attribute without elements has no type, so a scan that only carries gets none.
    stacked = {"scan_output_axes": [axis], "scan_output_directions": [backwards]}
    return e.node(
        "Scan",
        inputs[:looped],
        len(op.results),
        body=_body(e, op, looped, inputs[looped:]),
        num_scan_inputs=sequences,
        scan_input_axes=[axis] * sequences,
        scan_input_directions=[backwards] * sequences,
        **{key: value * outputs for key, value in stacked.items() if outputs},
    )


def _body(e: Emitter, op: Op, looped: int, constants: list[str]) -> object:
    body = op.body
    if body is None:
        raise BackendError(f"{op.loc}: a scan without a body cannot be written")
    inner = Emitter(e.root, outer=e)
    params = [e.root.fresh("in") for _ in range(looped)]
    results = [e.root.fresh("out") for _ in body.results]
    inner.names.update(zip(body.params, [*params, *constants], strict=True))
    inner.block(body, results)
    return helper.make_graph(
        inner.nodes,
        e.root.fresh("body"),
        [tensor_info(n, v) for n, v in zip(params, body.params[:looped], strict=True)],
        [tensor_info(n, v) for n, v in zip(results, body.results, strict=True)],
    )


EMITTERS: dict[str, Emit] = {"scan": _scan}
