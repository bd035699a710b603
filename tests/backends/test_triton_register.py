"""The kernels in the place of the core's: which ones, and a training step of a small model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.backends.triton_kernels import TOLERANCE

from seqmix import registry
from seqmix.errors import PluginError
from seqmix.op import bound_ops
from seqmix_triton import register as module
from seqmix_triton.binaries import TARGETS, Resources
from seqmix_triton.library import all_kernels
from seqmix_triton.lowering import plugin_kernels
from seqmix_triton.rules import all_rules

# Runs on its own, as a replaced op stays replaced.
_STEP = """
import torch
from seqmix.ops import attention, causal_conv1d, linear_attention, linear_scan, rotary
from seqmix_triton.register import register

torch.manual_seed(0)
B, H, S, K = 1, 1, 9, 8
shapes = [(B, H * K, S), (H * K, 4), (B, H, S, K), (B, H, S), (B, S, H * K)]
drawn = [torch.randn(shape, dtype=torch.float64) for shape in shapes]

def step(dtype):
    x, taps, key, decay, gate = (t.detach().to(dtype, copy=True).requires_grad_() for t in drawn)
    zeros = torch.zeros(B, H * K, 3, dtype=dtype)
    positions = torch.arange(S).repeat(B, 1)
    angle = positions[..., None] / torch.tensor([1.0, 10.0])
    y, _ = causal_conv1d(x, taps, None, zeros, activation="silu")
    y = y.view(B, H, K, S).transpose(2, 3).contiguous()
    q = rotary(y, angle.cos().to(dtype), angle.sin().to(dtype))
    y = attention(q, key, y, positions, positions) + y
    y, _ = linear_attention(q, key, y, -decay.abs(), zeros.new_zeros(B, H, K, K))
    y, _ = linear_scan(gate.sigmoid(), y.transpose(1, 2).flatten(2), zeros[:, :, 0])
    y.square().sum().backward()
    return [t.grad for t in (x, taps, key, decay, gate)]

expected = step(torch.float64)
register("cpu")
register("cpu")
found = step(torch.float32)
for a, b in zip(found, expected, strict=True):
    print(float((a - b).abs().max() / b.abs().max()))
"""


def test_every_kernel_replaces_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[tuple[str, str]] = []
    loops: list[str] = []

    def note(name: str, device: str, kernel: Callable[..., Any]) -> None:
        replaced.append((name, device))

    monkeypatch.setattr(module, "replace", note)
    monkeypatch.setattr(module, "write_with", lambda device, writer: loops.append(device))
    monkeypatch.setattr(module, "_registered", set())
    module.register()
    module.register()
    names = {*module.KERNELS, "xlstm.mlstm", "xlstm.mlstm_backward"}
    assert loops == ["cuda"]
    assert sorted(replaced) == [(name, "cuda") for name in sorted(names)]
    torch_names = {name.removesuffix("_backward").replace(".", "_") for name in names}
    assert torch_names <= set(bound_ops())


def test_a_plugin_that_cannot_be_loaded_disturbs_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(kind: str, name: str) -> None:
        raise PluginError(f"{name} does not load")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "get", fail)
        with pytest.warns(RuntimeWarning, match=r"xlstm\.mlstm does not load"):
            assert list(plugin_kernels()) == []
        rule = all_rules()["xlstm.mlstm"]
    with pytest.raises(PluginError, match=r"xlstm\.mlstm does not load"):
        rule(None, None)


def test_gradients_of_a_small_model() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STEP],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == 5
    assert max(errors) < 10 * TOLERANCE[torch.float32]


def test_kernels_have_a_description_of_each_argument() -> None:
    kernels = list(all_kernels())
    assert len(kernels) == len({kernel.name for kernel in kernels}) >= 20
    for kernel in kernels:
        for case in kernel.cases:
            config = kernel.default(case.dtype, case.constants)
            constants = kernel.constants(case.dtype, case.constants, config)
            assert set(kernel.fn.arg_names) == set(kernel.arguments) | set(constants)
            assert set(case.absent) <= set(kernel.arguments)


def test_occupancy() -> None:
    small = Resources(registers=32, spilled=0, shared=0, warps=4)
    assert small.occupancy(TARGETS["cuda:90"]) == 1.0
    # 65536 registers hold 8 warps of 255 each, two programs of four.
    full = Resources(registers=255, spilled=0, shared=0, warps=4)
    assert full.occupancy(TARGETS["cuda:90"]) == 8 / 64
    wide = Resources(registers=32, spilled=0, shared=100 * 1024, warps=4)
    assert wide.occupancy(TARGETS["cuda:90"]) == 8 / 64
    assert wide.occupancy(TARGETS["hip:gfx942"]) == 0.0


def compiled(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "seqmix_triton.aot", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_the_table_of_one_kernel() -> None:
    done = compiled("--kernel", "tables", "--target", "cuda:80")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.full
def test_every_kernel_compiles_without_unexplained_spills() -> None:
    done = compiled()
    assert done.returncode == 0, done.stdout + done.stderr
