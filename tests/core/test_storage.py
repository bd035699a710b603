"""Models on disk and weights by name: what is read back is equal, what is broken is named."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.core import tiny

from seqmix import storage
from seqmix.errors import CheckpointError, ConfigError
from seqmix.model import Model
from seqmix.weights import Weights, to_numpy, to_torch


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path: Path, dtype: str, tied: bool) -> None:
    model = tiny.model(dtype=dtype, tie_embeddings=tied)
    storage.save_model(model, tmp_path)
    again = storage.load_model(tmp_path)
    assert again.config == model.config
    ids, positions = tiny.tokens(2, 5)
    assert torch.equal(again(ids, positions)[0], model(ids, positions)[0])
    assert ("head.weight" in storage.read_saved(tmp_path)[1].names()) != tied
    assert storage.is_saved(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_loaded_model_trains(tmp_path: Path) -> None:
    storage.save_model(tiny.model(), tmp_path)
    model = storage.load_model(tmp_path)
    ids, positions = tiny.tokens(1, 3)
    model(ids, positions)[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_saving_over_an_open_model(tmp_path: Path) -> None:
    storage.save_model(tiny.model(seed=1), tmp_path)
    _, weights = storage.read_saved(tmp_path)
    model = storage.load_model(tmp_path)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    storage.save_model(tiny.model(seed=2), tmp_path)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert weights.names()


def test_dtype_on_request(tmp_path: Path) -> None:
    model = tiny.model()
    wide = storage.model_from_weights(model.config, Weights.of(model), torch.float64)
    assert wide.dtype == torch.float64
    assert wide.config.dtype == "f64"
    ids, positions = tiny.tokens(1, 4)
    torch.testing.assert_close(wide(ids, positions)[0].float(), model(ids, positions)[0])


def test_everything_that_does_not_fit_is_named() -> None:
    model = tiny.model()
    tensors = dict(model.state_dict())
    del tensors["norm.weight"]
    del tensors["steps.2.branches.0.mixer.up.bias"]
    tensors["head.weight"] = torch.zeros(2)
    tensors["embed.weight"] = torch.zeros(3, 10)
    with pytest.raises(CheckpointError) as error:
        storage.model_from_weights(model.config, Weights.of_tensors(tensors), None, "there")
    message = str(error.value)
    assert message.startswith("there: weights do not fit the model: ")
    assert "missing 'norm.weight' [10]" in message
    assert "missing 'steps.2.branches.0.mixer.up.bias' [13]" in message
    assert "unexpected 'head.weight'" in message
    assert "'embed.weight' should be [53, 10], found [3, 10]" in message


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        storage.load_model(tmp_path)
    storage.save_model(tiny.model(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert not storage.is_saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        storage.load_model(tmp_path)


def test_broken_files(tmp_path: Path) -> None:
    storage.save_model(tiny.model(), tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for part in (whole[:-7], whole[:20], b"", b"\xff" * 64):
        weights.write_bytes(part)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
            storage.load_model(tmp_path)
    weights.write_bytes(whole)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="not valid JSON"):
        storage.load_model(tmp_path)


def test_weights_of_a_model_are_views_and_tied_ones_appear_once() -> None:
    model = tiny.model()
    weights = Weights.of(model)
    assert len(weights) == len(list(model.parameters()))
    assert "embed.weight" in weights
    before = weights.digest()
    model.embed.weight.add_(1)
    np.testing.assert_array_equal(weights.numpy("embed.weight"), model.embed.weight.numpy())
    assert weights.digest() != before


def test_unknown_weight() -> None:
    with pytest.raises(CheckpointError, match=r"did you mean 'embed\.weight'"):
        Weights.of(tiny.model()).numpy("embed.weights")


def test_bf16_both_ways() -> None:
    tensor = torch.randn(3, 5).to(torch.bfloat16)
    array = to_numpy(tensor)
    assert array.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(array.astype(np.float32), tensor.float().numpy())
    assert torch.equal(to_torch(array), tensor)
    assert torch.equal(to_torch(to_numpy(tensor.t())), tensor.t())


def test_read_only_arrays_become_tensors_of_their_own() -> None:
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    tensor = to_torch(array)
    tensor.add_(1)
    assert array[0, 0] == 0


def test_digest_depends_on_names_types_shapes_and_bytes() -> None:
    def digest(name: str = "a", dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> str:
        return Weights({name: lambda: np.zeros(shape, dtype)}).digest()

    others = [digest("b"), digest(dtype="int32"), digest(shape=(3, 2))]
    others.append(Weights({"a": lambda: np.ones((2, 3), np.float32)}).digest())
    assert len({digest(), *others}) == 5
    pair = {"a": lambda: np.zeros(2), "b": lambda: np.ones(2)}
    assert Weights(pair).digest() == Weights(dict(reversed(pair.items()))).digest()


def test_digest_of_files_is_remembered_until_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQMIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SEQMIX_NO_CACHE", raising=False)
    storage.save_model(tiny.model(seed=1), tmp_path)
    path = tmp_path / "model.safetensors"
    first = storage.read_weights(path).digest()
    assert first == Weights.of(tiny.model(seed=1)).digest()
    monkeypatch.setattr(Weights, "_content_digest", lambda self: "counted")
    assert storage.read_weights(path).digest() == first
    os.utime(path, ns=(1, 1))
    assert storage.read_weights(path).digest() == "counted"


def test_computed_buffers_are_rebuilt_not_lost() -> None:
    from pydantic import BaseModel

    from seqmix import registry
    from seqmix.config import Strict
    from seqmix.context import Context
    from seqmix.mixer import SequenceMixer
    from seqmix.state import State

    class Options(Strict):
        pass

    class Table(SequenceMixer):
        Config: type[BaseModel] = Options  # type: ignore[misc]

        def __init__(self, config: Options, width: int) -> None:
            super().__init__()
            self.table: torch.Tensor
            self.register_buffer("table", torch.arange(width) * 0.5, persistent=False)

        def forward(
            self, x: torch.Tensor, state: State, ctx: Context
        ) -> tuple[torch.Tensor, State]:
            return x * self.table, {}

        def flops(self, batch_size: int, seq_len: int) -> int:
            return 0

    with registry.register_local("mixers", "table", Table):
        config = tiny.config([{"kind": "table"}])
        model = Model(config)
        again = storage.model_from_weights(config, Weights.of(model))
    ids, positions = tiny.tokens(1, 3)
    assert torch.equal(again(ids, positions)[0], model(ids, positions)[0])
