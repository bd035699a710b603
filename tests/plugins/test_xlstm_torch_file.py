"""Files of torch.save, read without unpickling: what they hold comes back, the rest is told."""

from __future__ import annotations

import pickletools
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.xlstm_samples import STACK_OPTIONS, stack_weights

from seqmix.checkpoint import resolve
from seqmix.errors import CheckpointError
from seqmix_xlstm.stored import read_stored

NAME = "model/data.pkl"


def repacked(path: Path, change: Callable[[dict[str, bytes]], None], **how: Any) -> Path:
    """The archive with entries changed."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w", **how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def saved(folder: Path, state: Any, **options: Any) -> Path:
    torch.save(state, folder / "model.pt", **options)
    return folder / "model.pt"


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_layout_comes_back(tmp_path: Path, protocol: int) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state: dict[str, Any] = OrderedDict(
        whole=base,
        turned=base.t(),
        rows=base[1:3],
        strided=base[:, ::2],
        parameter=torch.nn.Parameter(base + 1),
        half=base.half(),
        bf16=base.bfloat16(),
        f64=base.double(),
        scalar=torch.tensor(3.0),
        empty=torch.zeros(0, 3),
    )
    path = saved(tmp_path, state, pickle_protocol=protocol)
    _, stored = read_stored(path)
    assert list(stored) == list(state)
    for name, expected in state.items():
        found = stored[name].load()
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected.detach())
        assert stored[name].shape == tuple(expected.shape)


def test_the_state_of_a_module(tmp_path: Path) -> None:
    state = torch.nn.Linear(3, 2).state_dict()
    _, stored = read_stored(saved(tmp_path, {"state_dict": state, "epoch": 2, "loss": [0.5, None]}))
    assert all(torch.equal(stored[name].load(), state[name]) for name in state)


def test_compressed_entries(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.zeros(1 << 16)})
    repacked(path, lambda _: None, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    with pytest.raises(CheckpointError, match="is compressed"):
        read_stored(path)


def instructions(*parts: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(entries: dict[str, bytes]) -> None:
        entries[NAME] = b"".join(parts)

    return change


def exchanged(*pairs: tuple[bytes, bytes]) -> Callable[[dict[str, bytes]], None]:
    def change(entries: dict[str, bytes]) -> None:
        for old, new in pairs:
            assert entries[NAME].count(old) == 1
            entries[NAME] = entries[NAME].replace(old, new)

    return change


HUGE = b"J\xff\xff\xff\x7f"
NESTED = b"\x80\x02)" + b"2\x86" * 60  # DUP is no instruction that is taken.
PAIRS = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"}h\x00K\x01s."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (exchanged((b"K\x08tq\x07Q", HUGE + b"tq\x07Q")), "does not fit its 32 bytes"),
        (exchanged((b"K\x08\x85", HUGE + b"\x85")), "leaves its 32 bytes"),
        (
            exchanged((b"K\x08\x85q\x08K\x01\x85", HUGE + b"\x85q\x08K\x00\x85")),
            "leaves its 32 bytes",
        ),
        (exchanged((b"QK\x00", b"QK\x07")), "leaves its 32 bytes"),
        (exchanged((b"K\x08\x85", b"J\xff\xff\xff\xff\x85")), "numbers >= 0"),
        (exchanged((b"FloatStorage", b"FloatStoraga")), "names torch.FloatStoraga"),
        (exchanged((b"ctorch._utils\n_rebuild_tensor_v2", b"cos\nsystem")), "names os.system"),
        (exchanged((b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x005")), "data/5"),
        (instructions(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R."), "names posix.system"),
        (instructions(b"(S'x'\nios\nsystem\n."), "more than hold tensors"),
        (instructions(NESTED, b"."), "more than hold tensors"),
        (instructions(PAIRS), "names as keys"),
        (instructions(b"\x80\x02]q\x00h\x00a."), "dictionary of tensors"),
        (instructions(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."), "nests deeper"),
        (instructions(b"\x80\x02}X\xff\xff\xff\x7fa"), "tensors alone"),
        (instructions(b"\x80\x02}r\xff\xff\xff\xff."), "dictionary|expected|found|$"),
        (instructions(b""), "tensors alone"),
        (instructions(b"\x80\x02R."), "tensors alone"),
        (lambda entries: entries.pop(NAME), "expected one entry"),
        (lambda entries: entries.update({"m2/data.pkl": b""}), "expected one entry"),
        (lambda entries: entries.update({"model/byteorder": b"big"}), "byteorder"),
    ],
)
def test_pickles_that_do_other_things(tmp_path: Path, change: Any, said: str) -> None:
    path = repacked(saved(tmp_path, {"a": torch.arange(8.0)}), change)
    started = time.process_time()
    if said.endswith("$"):
        assert read_stored(path)[1] == {}
        return
    with pytest.raises(CheckpointError, match=said):
        read_stored(path)
    assert time.process_time() - started < 2


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="tensors alone"):
        read_stored(path)
    saved(tmp_path, {"a": torch.zeros(2)})
    whole = path.read_bytes()
    for part in (whole[:-30], whole[100:], b"", whole[: len(whole) // 2]):
        path.write_bytes(part)
        with pytest.raises(CheckpointError, match=r"model\.pt"):
            read_stored(path)


def test_nothing_that_it_takes_is_a_call() -> None:
    """Every instruction of a pickle that calls or looks something up is refused or described."""
    from seqmix_xlstm.state_dict_pickle import IGNORED, STEPS, VALUES

    taken = {*IGNORED, *STEPS, *VALUES, "STOP"}
    assert taken <= {code.name for code in pickletools.opcodes}
    assert not taken & {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID"}


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="YAML needs the package pyyaml")
    folder = tmp_path / "m"
    folder.mkdir()
    options = yaml.safe_dump({**STACK_OPTIONS, "vocab_size": 48})
    (folder / "config.yaml").write_text(options, encoding="utf-8")
    (folder / "model.pt").symlink_to(saved(tmp_path, stack_weights()))
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        resolve(folder)
    (folder / "model.pt").unlink()
    saved(folder, stack_weights())
    assert len(resolve(folder).weights) > 20


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]",
        "[" * 5000,
        "a: 0x" + "f" * 50_000,
        "a: 1\na: 2",
        "!!python/object/apply:os.system ['x']",
        "a0: &a0 {x: 1}\n"
        + "\n".join(f"a{i}: &a{i} {{<<: [{f'*a{i - 1}, ' * 9}]}}" for i in range(1, 12)),
        "a: !!int ''",
        "a: 2020-13-45",
        "\0",
        "a: " + "x" * 70_000,
    ],
)
def test_yaml_that_is_hostile(text: str) -> None:
    pytest.importorskip("yaml", reason="YAML needs the package pyyaml")
    from seqmix.reading import UnreadableError
    from seqmix_xlstm.bounded_yaml import parse_yaml

    started = time.process_time()
    with pytest.raises(UnreadableError):
        parse_yaml(text)
    assert time.process_time() - started < 5
