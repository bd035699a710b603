"""examples/third_party_mixer, installed by pip as anybody's package is, and used by its README."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.packaging.own_packages import install, run

from seqmix import registry

pytest.importorskip("hatchling", reason="the package is built")
pytest.importorskip("onnxruntime", reason="the package brings a lowering for it")

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_mixer"
TRAINING = """
[task]
kind = "mqar"
vocab_size = 256
length = 16
pairs = 2
train_rows = 400
test_rows = 40
[training]
steps = 80
batch = 16
rate = 1e-2
log_every = 1
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed the package; it is built from a copy, which leaves no traces."""
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(EXAMPLE, folder / "source")
    install([folder / "source"], folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def trained(site: Path) -> Path:
    """A folder with a model of the README, trained for a moment on recall."""
    folder = site.parent / "work"
    folder.mkdir()
    model = tomllib.loads(model_of_the_readme())
    config = {"model": model, **tomllib.loads(TRAINING)}
    (folder / "train.json").write_text(json.dumps(config), encoding="utf-8")
    run(site, "seqmix", "train", "train.json", "-o", "out", folder=folder)
    return folder


def model_of_the_readme() -> str:
    """The configuration that the README shows."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return str(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])


def test_every_part_is_listed_and_loads(site: Path) -> None:
    rows = json.loads(run(site, "seqmix", "plugins", "--json"))
    own = [row for row in rows if row["distribution"] == "seqmix-mingru"]
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    written = {
        (group.removeprefix("seqmix."), name)
        for group, points in groups["entry-points"].items()
        for name in points
    }
    assert {(row["kind"], row["name"]) for row in own} == written
    assert {row["status"] for row in own} == {"ok"}
    assert written >= {("mixers", "mingru"), ("lowerings", "onnxruntime:mingru.positive")}


@pytest.mark.full
def test_its_own_tests_pass(site: Path, tmp_path: Path) -> None:
    """Without its backend, which the next test is about: Inductor compiles for minutes."""
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    said = run(site, "pytest", "-q", "tests", folder=tmp_path, SEQMIX_BLOCK_PLUGINS="inductor")
    assert "3 passed" in said


@pytest.mark.full
@pytest.mark.parametrize("subject", ["mingru", "op:mingru.positive"])
def test_its_backend_agrees(site: Path, subject: str) -> None:
    said = json.loads(run(site, "seqmix", "check", subject, "-b", "inductor", "--json"))
    rows = [row for row in said["rows"] if "inductor" in row["where"]]
    assert rows
    assert all(row["ok"] for row in rows)


@pytest.mark.full
def test_its_mixer_trains(trained: Path) -> None:
    lines = (trained / "out" / "metrics.csv").read_text("utf-8").splitlines()
    column = lines[0].split(",").index("loss")
    losses = [float(cells[column]) for line in lines[1:] if (cells := line.split(","))[column]]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


@pytest.mark.full
def test_a_model_of_it_is_exported_for_any_length(site: Path, trained: Path) -> None:
    import onnx

    run(site, "seqmix", "export", "out/model", "onnx", folder=trained)
    graph = onnx.load(trained / "onnx" / "model.onnx").graph
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    assert all(isinstance(size, str) for size in shapes["input_ids"])
    assert len(set(shapes["input_ids"])) == 2
    # The package's own form of its op, not the decomposition of it.
    kinds = {node.op_type for node in graph.node}
    assert {"Relu", "Min", "Scan"} <= kinds
    assert "GreaterOrEqual" not in {n.op_type for n in graph.node if "positive" in n.doc_string}


@pytest.mark.full
def test_a_model_of_it_runs_on_every_backend_here(site: Path, trained: Path) -> None:
    """Among them its own; ``check`` compares at lengths that were not traced."""
    said = json.loads(run(site, "seqmix", "check", "out/model", "--json", folder=trained))
    assert said["ok"]
    ran = {row["where"].split()[0] for row in said["rows"]}
    listed = json.loads(run(site, "seqmix", "backends", "--json"))
    available = {row["name"] for row in listed if row["devices"]}
    assert ran == available
    assert {"torch", "onnxruntime", "inductor"} <= available


@pytest.mark.full
def test_its_evaluation_is_a_command(site: Path, trained: Path) -> None:
    asked = ["eval", "repeat", "out/model", "--lengths", "8,16", "-b", "onnxruntime", "--json"]
    rows: list[dict[str, Any]] = json.loads(run(site, "seqmix", *asked, folder=trained))
    assert [row["length"] for row in rows] == [8, 16]
    assert all(row["first"] > 0 and row["again"] > 0 for row in rows)
    assert "random tokens" in run(site, "seqmix", "eval", "repeat", "--help")


def test_nothing_of_it_is_known_here() -> None:
    """What these tests install is for their processes alone."""
    assert "mingru" not in registry.names("mixers")
