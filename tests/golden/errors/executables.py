"""Backends that cannot run what they are given, and checkpoints that cannot be read.

Every situation gets a folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from tests.core import tiny
from tests.golden.errors.messages import Situations
from torch import Tensor

from seqmix import registry
from seqmix.backend import Availability, Program
from seqmix.backends.reference import ReferenceBackend
from seqmix.checkpoint import resolve
from seqmix.choose import choose_backend
from seqmix.compile import compile, load, program_of
from seqmix.model import Model, initial_states
from seqmix.storage import load_model, save_model
from seqmix_ir.graph import Op

__all__ = ["BACKEND", "CHECKPOINT"]

BLOCKS = [{"steps": [tiny.ATTENTION, tiny.WINDOW]}]
WITH_A_TYPO = """seqmix 1
module @m {
  graph @forward(%x: f32[3]) -> (y) {
    %y = softmx(%x) {axis = 0} : f32[3]
    return %y
  }
}
"""
BACKEND, CHECKPOINT = Situations("backend"), Situations("checkpoint")


@cache
def model() -> Model:
    return tiny.model(blocks=BLOCKS)


@cache
def program() -> Program:
    return program_of(model())


class Absent(ReferenceBackend):
    name: ClassVar[str] = "absent"
    automatic: ClassVar[bool] = True

    def probe(self) -> Availability:
        return Availability((), "no device of its kind; install its driver")


class Weak(ReferenceBackend):
    name: ClassVar[str] = "weak"

    def supports(self, op: Op, target: str) -> str | None:
        return "no kernel here" if op.name in ("attention", "matmul") else None


@BACKEND
def unknown_name(folder: Path) -> None:
    compile(program(), "referense")


@BACKEND
def unavailable(folder: Path) -> None:
    with registry.register_local("backends", "absent", Absent):
        compile(program(), "absent")


@BACKEND.quoting(r"\((\d+) more such")
def cannot_run_an_op(folder: Path) -> None:
    with registry.register_local("backends", "weak", Weak):
        compile(program(), "weak")


@BACKEND
def none_of_all(folder: Path) -> None:
    names = registry.names
    with registry.register_local("backends", "absent", Absent):
        try:
            registry.names = lambda kind: ["absent"]
            choose_backend(program().module)
        finally:
            registry.names = names


@BACKEND
def wrong_target(folder: Path) -> None:
    compile(program(), "reference", target="gpu")


@BACKEND.quoting(r"no torch device: (.*)")
def target_that_is_no_torch_device(folder: Path) -> None:
    compile(program(), "torch", target="gpu")


@BACKEND
def unknown_option(folder: Path) -> None:
    compile(program(), "reference", options={"juge": True})


@BACKEND
def option_of_another_type(folder: Path) -> None:
    compile(program(), "reference", options={"judge": "yes"})


@BACKEND
def nothing_to_compile(folder: Path) -> None:
    compile("smollm2.gguf")


def saved(folder: Path, file: str = "", change: Callable[[str], str] = str) -> None:
    """Load an executable that was saved with one file changed."""
    compile(program(), "reference").save(folder)
    if file:
        path = folder / file
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    load(folder)


@BACKEND
def folder_of_something_else(folder: Path) -> None:
    load(folder)


@BACKEND
def manifest_cut_short(folder: Path) -> None:
    saved(folder, "seqmix.json", lambda text: text[:40])


@BACKEND
def manifest_of_a_newer_format(folder: Path) -> None:
    saved(folder, "seqmix.json", lambda text: text.replace('"format": 1', '"format": 9'))


@BACKEND
def manifest_of_a_missing_backend(folder: Path) -> None:
    saved(folder, "seqmix.json", lambda text: text.replace('"reference"', '"elsewhere"'))


@BACKEND
def module_with_an_unknown_op(folder: Path) -> None:
    saved(folder, "module.txt", lambda text: WITH_A_TYPO)


@BACKEND
def weights_are_missing(folder: Path) -> None:
    compile(program(), "reference").save(folder)
    (folder / "model.safetensors").unlink()
    load(folder)


def run(**changes: Any) -> None:
    ids, positions = tiny.tokens(2, 3)
    good = {"input_ids": ids, "positions": positions, **initial_states(model(), 2)}
    inputs = {k: v for k, v in {**good, **changes}.items() if v is not None}
    compile(program(), "reference").run("forward", inputs)


@BACKEND
def missing_and_unknown_input(folder: Path) -> None:
    run(positions=None, position=torch.zeros(2, 3))


@BACKEND
def dtype_of_an_input(folder: Path) -> None:
    run(input_ids=torch.zeros(2, 3))


@BACKEND
def two_inputs_disagree(folder: Path) -> None:
    run(positions=torch.zeros(2, 2, dtype=torch.int64))


@BACKEND
def size_out_of_bounds(folder: Path) -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    run(input_ids=none, positions=none)


@BACKEND
def axis_of_a_state(folder: Path) -> None:
    run(**{"state.1.key": torch.zeros(2, 2, 2, 6)})


@BACKEND
def unknown_graph(folder: Path) -> None:
    compile(program(), "reference").run("steps", {})


# Checkpoints.


def stored(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Load a model that was saved with its tensors changed."""
    save_model(model(), folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    load_model(folder)


@CHECKPOINT
def missing_path(folder: Path) -> None:
    (folder / "smollm2.gguf").touch()
    resolve(folder / "smolm2.gguf")


@CHECKPOINT
def directory_of_something_else(folder: Path) -> None:
    (folder / "notes.txt").touch()
    resolve(folder)


@CHECKPOINT
def file_of_no_known_format(folder: Path) -> None:
    path = folder / "model.bin"
    path.write_bytes(b"\x80\x02")
    resolve(path)


@CHECKPOINT
def weights_file_is_missing(folder: Path) -> None:
    save_model(model(), folder)
    (folder / "model.safetensors").unlink()
    load_model(folder)


@CHECKPOINT
def missing_tensor(folder: Path) -> None:
    stored(folder, lambda tensors: tensors.pop("norm.weight"))


@CHECKPOINT
def extra_tensor(folder: Path) -> None:
    stored(folder, lambda tensors: tensors.update(spare=torch.zeros(3)))


@CHECKPOINT
def misshaped_tensor(folder: Path) -> None:
    stored(folder, lambda tensors: tensors.update({"norm.weight": torch.zeros(11)}))


@CHECKPOINT
def misnamed_tensor(folder: Path) -> None:
    stored(folder, lambda tensors: tensors.update(normweight=tensors.pop("norm.weight")))


@CHECKPOINT.quoting(r"safetensors file: (.*?);")
def broken_safetensors_header(folder: Path) -> None:
    save_model(model(), folder)
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not json at all}")
    load_model(folder)


@CHECKPOINT.quoting(r"safetensors file: (.*?);")
def truncated_safetensors(folder: Path) -> None:
    save_model(model(), folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    load_model(folder)


@CHECKPOINT
def broken_configuration(folder: Path) -> None:
    save_model(model(), folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "width": 0}))
    resolve(folder)


@CHECKPOINT
def broken_gguf_header(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + bytes(60))
    resolve(path)


@CHECKPOINT
def truncated_gguf(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16)
    resolve(path)


@CHECKPOINT.quoting(r"; supported: (.*)")
def unknown_family(folder: Path) -> None:
    config = {"model_type": "mamba9", "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"w": torch.zeros(3)}, folder / "model.safetensors")
    resolve(folder)
