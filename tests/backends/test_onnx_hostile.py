"""Folders that someone put together to do harm: refused before ONNX Runtime opens a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.fuzz.target_onnx import make

from seqmix.compile import load
from seqmix.errors import BackendError
from seqmix_onnxruntime.model_file import DATA, MODEL, STEP


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    make(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def in_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "seqmix.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def in_model(folder: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load_model(folder / MODEL, load_external_data=False)
    change(model)
    (folder / MODEL).write_bytes(model.SerializeToString())


def place(model: onnx.ModelProto, key: str, value: str) -> None:
    tensor = next(t for t in model.graph.initializer if t.external_data)
    next(entry for entry in tensor.external_data if entry.key == key).value = value


def another_input(model: onnx.ModelProto) -> None:
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[-1].name = "z"


def set_first_axis(model: onnx.ModelProto, size: int) -> None:
    next(t for t in model.graph.initializer if t.external_data).dims[0] = size


def test_what_was_saved_is_taken(folder: Path) -> None:
    assert load(folder).report.backend == "onnxruntime"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: place(m, "location", "/etc/passwd"), "lies in '/etc/passwd', expected"),
        (lambda m: place(m, "location", f"../{DATA}"), f"lies in '../{DATA}', expected"),
        (lambda m: place(m, "offset", str(2**62)), "should have 4800 bytes within the 4800"),
        (lambda m: place(m, "offset", "-1"), "at -1"),
        (lambda m: place(m, "length", "9" * 5000), "should have 4800 bytes"),
        (lambda m: set_first_axis(m, 2**40), "should have"),
        (lambda m: set_first_axis(m, 2**60), "claims the shape"),
        (lambda m: set_first_axis(m, -1), "claims the shape"),
        (another_input, "'z' should be nothing, found tensor.float. with 2 axes"),
    ],
)
def test_a_file_that_lies(
    folder: Path, change: Callable[[onnx.ModelProto], object], message: str
) -> None:
    in_model(folder, change)
    with pytest.raises(BackendError, match=message):
        load(folder)


def test_a_tensor_within_the_file_that_is_larger_than_it(folder: Path) -> None:
    def grow(model: onnx.ModelProto) -> None:
        tensor = onnx.TensorProto(name="large", data_type=onnx.TensorProto.FLOAT, dims=[10**11])
        model.graph.initializer.append(tensor)

    in_model(folder, grow)
    with pytest.raises(BackendError, match="'large' claims 100000000000 elements"):
        load(folder)


@pytest.mark.parametrize("name", [MODEL, STEP, DATA, "seqmix.json", "module.txt", "config.json"])
def test_a_link_out_of_the_folder(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/etc/passwd")
    with pytest.raises(BackendError, match=rf"{name}: leads out of its folder"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["options"].update(threads=10**9), r"'threads' should be in 0\.\.1024"),
        (lambda c: c.update(options=3), "'options' is missing or broken"),
        (lambda c: c["interface"].update(inputs=[["x", "x"]]), "'inputs' should be a name"),
        (lambda c: c["interface"].update(inputs={"x": "y", "z": "y"}), "'inputs' should be a name"),
        (lambda c: c["interface"].update(outputs={"q": "y"}), "its outputs are not those"),
        (lambda c: c["interface"].update(grown="x"), "'grown' should be a list"),
        (lambda c: c["interface"].update(positions=True), "its inputs are not those"),
        (lambda c: c["interface"].update(extra=1), "unexpected keyword argument 'extra'"),
        (lambda c: c["report"].update(kernels=[1]), "'report' is missing or broken"),
        (lambda c: c["report"].update(more={}), "'report' is missing or broken: unknown: more"),
        (lambda c: c.update(report=None), "'report' is missing or broken"),
    ],
)
def test_a_manifest_that_does_not_fit(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    in_manifest(folder, change)
    with pytest.raises(BackendError, match=message):
        load(folder)


def test_a_manifest_that_nests_without_end(folder: Path) -> None:
    (folder / "seqmix.json").write_text("[" * 100_000)
    with pytest.raises(BackendError, match="is not valid JSON"):
        load(folder)
