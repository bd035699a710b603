"""xLSTM models against those that wrote them: transformers, and the package ``xlstm``.

With ``xlstm`` and ``mlstm_kernels`` installed transformers runs their blocks, else its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from seqmix.checkpoint import Checkpoint, resolve
from seqmix.generate import generate_all
from seqmix.model import Model, flatten_states, unflatten_states
from seqmix_xlstm.checkpoints import read_block_stack, read_large, to_hugging_face

VOCAB = 61
LENGTHS = [1, 2, 7, 16, 33, 65]
TOLERANCE = 1e-5
"""The largest difference of logits, relative to the largest logit."""
FULL = pytest.mark.full
DTYPES = [torch.float32, pytest.param(torch.float64, marks=FULL)]
PEER = "needs the packages xlstm and mlstm_kernels (pip install --no-deps xlstm mlstm_kernels)"


@dataclass(frozen=True)
class Pair:
    """One model twice; ``theirs`` maps ids ``[B, S]`` to logits."""

    checkpoint: Checkpoint
    ours: Model
    theirs: Callable[[Tensor], Tensor]
    network: Any


Pairs: TypeAlias = Callable[[str, torch.dtype], Pair]


def ids_of(rows: int, length: int) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(length))


def positions(ids: Tensor, start: int = 0) -> Tensor:
    return torch.arange(start, start + ids.shape[1]).expand_as(ids)


def shaken(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """No weight keeps its fresh value: some would be 0, and hide what they multiply."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise)
    return network.to(dtype).eval()


def difference(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def hugging_face_pair(name: str, dtype: torch.dtype, folder: Path) -> Pair:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    config = transformers.xLSTMConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=2,
        num_heads=4 if name == "hf-4-heads" else 2,
        v_dim_factor=2.0 if name == "hf-4-heads" else 1.0,
        ffn_round_up_to_multiple_of=16,
        chunk_size=16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(1)
    network = shaken(transformers.xLSTMForCausalLM(config), dtype)
    sharded = {"max_shard_size": "300KB"} if name == "hf-4-heads" else {}
    network.save_pretrained(folder, **sharded)
    checkpoint = resolve(folder)
    return make(checkpoint, dtype, lambda ids: network(ids).logits, network)


def large_pair(name: str, dtype: torch.dtype, folder: Path) -> Pair:
    large = pytest.importorskip("xlstm.xlstm_large.model", reason=PEER)
    utils = pytest.importorskip("xlstm.xlstm_large.utils", reason=PEER)
    options: dict[str, Any] = {
        "embedding_dim": 96,
        "num_heads": 3,
        "num_blocks": 2,
        "vocab_size": VOCAB,
        "ffn_round_up_to_multiple_of": 16,
        "chunkwise_kernel": "chunkwise--native_autograd",
        "sequence_kernel": "native_sequence__native",
        "step_kernel": "native",
        "mode": "inference",
        "chunk_size": 16,
        "return_last_states": True,
        "autocast_kernel_dtype": "float32",
    }
    torch.manual_seed(2)
    network = shaken(large.xLSTMLarge(large.xLSTMLargeConfig(**options)), dtype)
    if name == "large-fused":
        options["weight_mode"] = "fused"
        weights = utils.convert_single_weights_to_fused_weights(network.state_dict())
        network = large.xLSTMLarge(large.xLSTMLargeConfig(**options)).to(dtype).eval()
        network.load_state_dict(weights)
    path = folder / "weights.pt"
    torch.save(network.state_dict(), path)
    return make(read_large(path, options), dtype, lambda ids: network(ids)[0], network)


def stack_pair(name: str, dtype: torch.dtype, folder: Path) -> Pair:
    package = pytest.importorskip("xlstm", reason=PEER)
    dacite = pytest.importorskip("dacite", reason=PEER)
    options: dict[str, Any] = {
        "vocab_size": VOCAB,
        "embedding_dim": 48,
        "num_blocks": 3,
        "context_length": 65,
        "tie_weights": name == "stack-tied",
        "mlstm_block": {
            "mlstm": {"num_heads": 2, "conv1d_kernel_size": 3, "qkv_proj_blocksize": 8}
        },
    }
    if name != "stack-mlstm":
        options["slstm_at"] = [0, 2] if name == "stack-mixed" else "all"
        options["slstm_block"] = {
            "slstm": {"num_heads": 3, "backend": "vanilla", "dtype": "float32"},
            "feedforward": {"proj_factor": 1.5, "act_fn": "gelu"},
        }
    config = dacite.from_dict(package.xLSTMLMModelConfig, options)
    torch.manual_seed(4)
    network = shaken(package.xLSTMLMModel(config), dtype)
    weights = network.state_dict()
    if name == "stack-cuda":
        weights = cuda_layout(network)
        options["slstm_block"]["slstm"]["backend"] = "cuda"
    path = folder / "weights.pt"
    torch.save(weights, path)
    return make(read_block_stack(path, options), dtype, network, network)


def cuda_layout(network: nn.Module) -> dict[str, Tensor]:
    """The weights as backend "cuda" keeps them, by the peer's own conversions."""
    cells = pytest.importorskip("xlstm.blocks.slstm.cell", reason=PEER)
    weights = network.state_dict()
    for path, cell in network.named_modules():
        if not isinstance(cell, cells.sLSTMCell_vanilla):
            continue
        for name in ("_recurrent_kernel", "_bias"):
            plain = getattr(cell, f"{name}_int2ext")(weights[f"{path}.{name}_"])
            to_cuda = getattr(cells.sLSTMCell_cuda, f"{name}_ext2int")
            weights[f"{path}.{name}_"] = to_cuda(cell, plain).contiguous()
    return weights


def make(checkpoint: Checkpoint, dtype: torch.dtype, theirs: Any, network: Any) -> Pair:
    ours = Model.from_checkpoint(checkpoint).eval()
    assert ours.embed.weight.dtype == dtype
    return Pair(checkpoint, ours, theirs, network)


MAKERS = {"hf": hugging_face_pair, "large": large_pair, "stack": stack_pair}
NAMES = [
    "hf-2-heads",
    pytest.param("hf-4-heads", marks=FULL),
    pytest.param("large-single", marks=FULL),
    "large-fused",
    "stack-mlstm",
    "stack-mixed",
    pytest.param("stack-all", marks=FULL),
    pytest.param("stack-cuda", marks=FULL),
    pytest.param("stack-tied", marks=FULL),
]


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Each pair is made once; peers may warn as they like."""
    made: dict[Any, Pair] = {}

    def get(name: str, dtype: torch.dtype) -> Pair:
        if (name, dtype) not in made:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                maker = MAKERS[name.partition("-")[0]]
                made[name, dtype] = maker(name, dtype, tmp_path_factory.mktemp(name))
        return made[name, dtype]

    return get


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_logits_at_several_lengths(pair_of: Pairs, name: str, dtype: torch.dtype) -> None:
    pair = pair_of(name, dtype)
    worst = 0.0
    for length in LENGTHS:
        ids = ids_of(2, length)
        logits, _ = pair.ours(ids, positions(ids))
        worst = max(worst, difference(logits, pair.theirs(ids)))
    print(f"{name} {dtype}: {worst:.2e}")
    assert worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_prefill_and_decoding(pair_of: Pairs, name: str) -> None:
    pair = pair_of(name, torch.float32)
    ids = ids_of(2, 25)
    logits, states = pair.ours(ids[:, :19], positions(ids[:, :19]))
    parts = [logits]
    for place in range(19, 25):
        token = ids[:, place : place + 1]
        logits, states = pair.ours(token, positions(token, place), states)
        parts.append(logits)
    assert difference(torch.cat(parts, 1), pair.theirs(ids)) <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_greedy_generation(pair_of: Pairs, name: str) -> None:
    pair = pair_of(name, torch.float64)
    ids = ids_of(2, 5)
    found = generate_all(pair.ours, ids.tolist(), max_new_tokens=12)
    wanted = ids
    for _ in range(12):
        wanted = torch.cat([wanted, pair.theirs(wanted)[:, -1:].argmax(-1)], 1)
    assert found == wanted[:, 5:].tolist()


@torch.inference_mode()
def test_generation_of_transformers(pair_of: Pairs) -> None:
    pair = pair_of("hf-2-heads", torch.float32)
    ids = ids_of(2, 21)
    wanted = pair.network.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=0)
    assert generate_all(pair.ours, ids.tolist(), max_new_tokens=10) == wanted[:, 21:].tolist()


@torch.inference_mode()
def test_transformers_reads_what_is_written(pair_of: Pairs, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    pair = pair_of("hf-2-heads", torch.float32)
    to_hugging_face(pair.ours, tmp_path)
    network, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    written, wanted = network.state_dict(), pair.network.state_dict()
    assert written.keys() == wanted.keys()
    assert all(written[name].equal(tensor) for name, tensor in wanted.items())
    ids = ids_of(2, 33)
    assert difference(pair.theirs(ids), network.eval()(ids).logits) < 1e-6


@torch.inference_mode()
def test_a_fresh_row_beside_one_that_goes_on(pair_of: Pairs) -> None:
    """The peer's vanilla backend asks whether the whole batch is fresh, and divides 0 by 0."""
    pair = pair_of("stack-mixed", torch.float32)
    model = Model.from_checkpoint(pair.checkpoint).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("mixer.bias"):
            parameter[:, 0] = -110.0
    ids = ids_of(2, 9)
    _, after = model(ids[:1, :5], positions(ids[:1, :5]))
    first, _ = model(ids[:1, 5:], positions(ids[:1, 5:], 5), after)
    second, fresh = model(ids[1:, :4], positions(ids[1:, :4]))
    start = {
        name: torch.zeros_like(tensor) for name, tensor in flatten_states(model, fresh).items()
    }
    both = {
        name: torch.cat([tensor, start[name]])
        for name, tensor in flatten_states(model, after).items()
    }
    joined = torch.cat([ids[:1, 5:], ids[1:, :4]])
    places = torch.cat([positions(ids[:1, 5:], 5), positions(ids[1:, :4])])
    logits, _ = model(joined, places, unflatten_states(model, both))
    assert logits.isfinite().all()
    assert difference(logits, torch.cat([first, second])) <= TOLERANCE
