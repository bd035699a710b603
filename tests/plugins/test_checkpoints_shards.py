"""Weights in several files: what the index and the shards may and may not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.checkpoint_families import make_pair
from tests.plugins.checkpoint_samples import foreign_weights, write_folder

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix.model import Model

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
MOVED = "model.norm.weight"


def sharded(folder: Path) -> Path:
    """Two shards with the embedding and the final norm in the first."""
    weights = foreign_weights()
    write_folder(folder, weights)
    (folder / "model.safetensors").unlink()
    files = {name: FIRST if n < 9 else SECOND for n, name in enumerate(weights)}
    for file in (FIRST, SECOND):
        save_file({n: t for n, t in weights.items() if files[n] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def with_index(folder: Path, **changes: str | None) -> None:
    data = json.loads((folder / INDEX).read_text())
    places = {**data["weight_map"], **{k.replace("__", "."): v for k, v in changes.items()}}
    data["weight_map"] = {k: v for k, v in places.items() if v is not None}
    (folder / INDEX).write_text(json.dumps(data))


def with_tensor(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    weights = {**load_file(path), name: tensor}
    save_file({n: t for n, t in weights.items() if t is not None}, path)


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        resolve(folder)
    assert str(folder) in str(error.value)
    return str(error.value)


def test_what_transformers_shards_is_read(tmp_path: Path) -> None:
    pair = make_pair("qwen3", tmp_path / "whole")
    pair.theirs.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    parts = resolve(tmp_path / "parts")
    assert parts.weights.digest() == resolve(tmp_path / "whole").weights.digest()
    ids, positions = torch.tensor([[3, 1, 4]]), torch.arange(3).unsqueeze(0)
    assert torch.equal(
        Model.from_checkpoint(parts)(ids, positions)[0], pair.ours(ids, positions)[0]
    )


def test_the_shards_of_neox_hold_fused_projections(tmp_path: Path) -> None:
    pair = make_pair("neox", tmp_path / "whole")
    pair.theirs.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert (tmp_path / "parts" / INDEX).is_file()
    assert (
        resolve(tmp_path / "parts").weights.digest() == resolve(tmp_path / "whole").weights.digest()
    )


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    (folder / SECOND).unlink()
    assert f"expected the shard {SECOND}, found no such file" in refused(folder)


def test_a_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    with_tensor(folder / FIRST, MOVED, None)
    assert f"'{MOVED}' should be in {FIRST}, which has no such tensor" in refused(folder)


def test_a_tensor_that_the_index_lacks(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    with_index(folder, model__norm__weight=None)
    assert f"does not list tensor '{MOVED}', found in {FIRST}" in refused(folder)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    with_tensor(folder / SECOND, MOVED, torch.zeros(24))
    said = refused(folder)
    assert f"'{MOVED}' should be in one shard, found in {FIRST} and in {SECOND}" in said


def test_a_tensor_twice_in_the_index(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    text = (folder / INDEX).read_text()
    once = f'"{MOVED}": "{FIRST}"'
    (folder / INDEX).write_text(text.replace(once, f'{once}, "{MOVED}": "{SECOND}"'))
    assert f"the key '{MOVED}' appears twice" in refused(folder)


@pytest.mark.parametrize(
    "place",
    [
        "../outside.safetensors",
        "sub/../../outside.safetensors",
        "/etc/hosts.safetensors",
        "..",
        ".",
        "sub/inside.safetensors",
        "outside.safetensors/",
        "~/outside.safetensors",
        "file:outside.bin",
    ],
)
def test_shards_outside_of_the_folder(tmp_path: Path, place: str) -> None:
    folder = sharded(tmp_path / "m")
    (folder / "sub").mkdir()
    for path in (tmp_path / "outside.safetensors", folder / "sub" / "inside.safetensors"):
        save_file({MOVED: torch.zeros(24)}, path)
    with_index(folder, model__norm__weight=place)
    assert f"found '{place}', which leads out of it or is of another kind" in refused(folder)


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", '{"weight_map": []}', '{"weight_map": null}', "nonsense", '{"weight_map": {"x"'],
)
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    folder = sharded(tmp_path / "m")
    (folder / INDEX).write_text(text)
    assert "should map tensors to files under 'weight_map'" in refused(folder)


@pytest.mark.parametrize("value", [5, None, [FIRST], {"file": FIRST}])
def test_places_that_are_no_names(tmp_path: Path, value: Any) -> None:
    folder = sharded(tmp_path / "m")
    data = json.loads((folder / INDEX).read_text())
    data["weight_map"][MOVED] = value
    (folder / INDEX).write_text(json.dumps(data))
    assert "weights should be .safetensors files of this folder" in refused(folder)


def test_an_empty_index_lacks_everything(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    (folder / INDEX).write_text('{"weight_map": {}}')
    assert "the weights have 0 tensors" in refused(folder)


def test_a_truncated_shard(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[:-10])
    assert SECOND in refused(folder)
