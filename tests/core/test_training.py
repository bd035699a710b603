"""The trainer: it learns, resumes to the bit, cuts batches without a trace, and stops in time."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.training_cases import Counting, Noisy, cases, noisy_training, tiny_training
from torch import Tensor

from seqmix.config import Kind
from seqmix.errors import CheckpointError, ConfigError
from seqmix.training.objective import Objective, parameter_groups
from seqmix.training.plan import Plan, learning_rate
from seqmix.training.rows import IGNORED, Order
from seqmix.training.trainer import Trainer, TrainingError

pytest.importorskip("lightning_fabric")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with cases():
        yield


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor], **close: float) -> None:
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], **{"rtol": 0, "atol": 0, **close})


class StopError(Exception):
    pass


def stop_at(step: int) -> Any:
    def watch(trainer: Trainer) -> None:
        if trainer.standing.step == step:
            raise StopError

    return watch


def test_it_learns_and_writes_figures(tmp_path: Path) -> None:
    trainer = Trainer(tiny_training(steps=60), tmp_path)
    standing = trainer.run()
    rows = rows_of(tmp_path)
    assert standing.step == 60
    assert trainer.done
    assert [int(row["step"]) for row in rows] == list(range(2, 61, 2))
    assert float(rows[0]["loss"]) > 1.5
    assert float(rows[-1]["held_out_loss"]) < 0.1
    assert float(rows[-1]["held_out_accuracy"]) == 1.0
    assert rows[0]["held_out_loss"] == ""
    assert rows[-1]["tokens"] == str(60 * 8 * 6)


@pytest.mark.parametrize(("stopped", "save_every"), [(1, 5), (7, 3), (11, 1)])
def test_a_stopped_training_ends_with_the_same_bytes(
    tmp_path: Path, stopped: int, save_every: int
) -> None:
    training = tiny_training(save_every=save_every, accumulate=2)
    whole = Trainer(training, tmp_path / "whole")
    whole.run()
    with pytest.raises(StopError):
        Trainer(training, tmp_path / "cut").run(stop_at(stopped))
    torch.manual_seed(1234)  # Whatever else happens in the process that goes on.
    again = Trainer(training, tmp_path / "cut")
    assert again.standing.step == stopped // save_every * save_every
    again.run()
    assert_same(weights(whole), weights(again))
    first, second = (tmp_path / name / "metrics.csv" for name in ("whole", "cut"))
    assert first.read_bytes() == second.read_bytes()


def test_random_numbers_go_on_and_auxiliary_losses_count(tmp_path: Path) -> None:
    training = noisy_training(save_every=4)
    whole = Trainer(training, tmp_path / "whole")
    before = torch.get_rng_state()
    whole.run()
    torch.testing.assert_close(torch.get_rng_state(), before)
    with pytest.raises(StopError):
        Trainer(training, tmp_path / "cut").run(stop_at(6))
    again = Trainer(training, tmp_path / "cut")
    again.run()
    assert_same(weights(whole), weights(again))
    figures = [float(row["auxiliary_loss"]) for row in rows_of(tmp_path / "whole")]
    assert all(figure > 0 for figure in figures)


def test_auxiliary_losses_have_gradients(tmp_path: Path) -> None:
    trainer = Trainer(noisy_training(), tmp_path)
    batch = trainer.task.train.take(np.arange(8))
    nothing = torch.full_like(batch.targets, IGNORED)
    loss, right, auxiliary = Objective(trainer.model)(batch.inputs, nothing, batch.positions)
    auxiliary.backward()
    assert loss.item() == right.item() == 0
    layer = next(m for m in trainer.model.modules() if isinstance(m, Noisy)).inner
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("accumulate", [8])
def test_micro_batches_change_nothing_but_rounding(tmp_path: Path, accumulate: int) -> None:
    # Rows ask at different numbers of places, so a mean of means would be another loss.
    whole = Trainer(tiny_training(), tmp_path / "whole")
    cut = Trainer(tiny_training(accumulate=accumulate), tmp_path / "cut")
    whole.run()
    cut.run()
    assert_same(weights(whole), weights(cut), atol=1e-4)
    for one, other in zip(*map(rows_of, (whole.out, cut.out)), strict=True):
        assert float(one["loss"]) == pytest.approx(float(other["loss"]), abs=1e-5)


def test_gradients_are_clipped(tmp_path: Path) -> None:
    trainer = Trainer(tiny_training(clip=1e-3), tmp_path)
    seen = []
    trainer._optimizer.step = lambda: seen.append(
        torch.stack([p.grad.norm() for p in trainer.model.parameters()]).norm()
    )
    trainer.advance()
    assert seen[0].item() == pytest.approx(1e-3, rel=1e-3)
    assert float(trainer.standing.norm) > 1e-2


def test_half_precision_trains_weights_that_stay_wide(tmp_path: Path) -> None:
    trainer = Trainer(tiny_training(steps=60, precision="bf16-mixed"), tmp_path)
    trainer.run()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert float(rows_of(tmp_path)[-1]["held_out_accuracy"]) == 1.0


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_a_model_keeps_its_own_precision(tmp_path: Path, dtype: str) -> None:
    training = tiny_training(steps=4)
    model = training.model.model_copy(update={"dtype": dtype})
    trainer = Trainer(training.model_copy(update={"model": model}), tmp_path)
    trainer.run()
    expected = {"f64": torch.float64, "bf16": torch.bfloat16}[dtype]
    assert {p.dtype for p in trainer.model.parameters()} == {expected}


def test_it_stops_when_it_is_good_enough(tmp_path: Path) -> None:
    trainer = Trainer(tiny_training(steps=400, stop="accuracy", stop_at=0.99), tmp_path)
    standing = trainer.run()
    assert standing.stopped
    assert standing.step < 200
    again = Trainer(trainer.training, tmp_path)
    assert again.done
    assert again.run().step == standing.step


def test_it_gives_up_when_nothing_improves(tmp_path: Path) -> None:
    training = tiny_training(steps=400, rate=1e-12, stop="accuracy", patience=3)
    assert Trainer(training, tmp_path).run().step == 16


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    Trainer(tiny_training(), tmp_path).run()
    with pytest.raises(CheckpointError, match=r"training\.rate: 0\.05, now 0\.1"):
        Trainer(tiny_training(rate=0.1), tmp_path)
    changed = tiny_training()
    changed = changed.model_copy(update={"task": Kind(kind="counting", shift=3)})
    with pytest.raises(CheckpointError, match=r"task\.shift: None, now 3"):
        Trainer(changed, tmp_path)
    Trainer(tiny_training(rate=0.1), tmp_path, resume=False)
    (tmp_path / "training.ckpt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Trainer(tiny_training(), tmp_path)


def test_changed_data_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Trainer(tiny_training(), tmp_path).run()
    monkeypatch.setattr(Counting, "fingerprint", lambda self: "other")
    with pytest.raises(CheckpointError, match="the data has changed"):
        Trainer(tiny_training(), tmp_path)


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    trainer = Trainer(tiny_training(save_every=1), tmp_path)
    with torch.no_grad():
        trainer.model.embed.weight[:] = torch.nan
    with pytest.raises(TrainingError, match="no longer finite at step 1; lower 'rate'"):
        trainer.run()
    assert not (tmp_path / "training.ckpt").exists()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"batch": 33}, "32 rows, fewer than one batch of 33"),
        ({"batch": 8, "accumulate": 3}, "no multiple of accumulate"),
        ({"stop": "loss"}, "needs stop_at or patience"),
        ({"patience": 2}, "need 'stop'"),
    ],
)
def test_plans_that_do_not_fit(tmp_path: Path, plan: dict, said: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=said):
        Trainer(tiny_training(**plan), tmp_path)


def test_a_vocabulary_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "vocab_size", 9)
    with pytest.raises(ConfigError, match="the task uses 9 ids, the model has vocab_size 8"):
        Trainer(tiny_training(), tmp_path)


def test_the_rate_warms_up_and_falls_as_a_cosine() -> None:
    plan = Plan(steps=11, warm_up=4, rate=2.0, lowest=0.25)
    rates = [learning_rate(step, plan) for step in range(11)]
    np.testing.assert_allclose(rates[:5], [0.5, 1.0, 1.5, 2.0, 2.0])
    assert rates[7] == pytest.approx((2.0 + 0.5) / 2)
    assert rates[10] == pytest.approx(0.5)


def test_every_epoch_reads_every_row_once_in_another_order() -> None:
    order = Order(10, 3, seed=5)
    assert order.steps_per_epoch == 3
    epochs = [np.concatenate([order.at(3 * e + s) for s in range(3)]) for e in range(2)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert not np.array_equal(*epochs)
    # The order does not depend on what was asked for before.
    np.testing.assert_array_equal(Order(10, 3, seed=5).at(4), order.at(4))
    assert not np.array_equal(Order(10, 3, seed=6).at(0), order.at(0))


def test_only_matrices_decay(tmp_path: Path) -> None:
    model = Trainer(tiny_training(), tmp_path).model
    decaying, others = parameter_groups(model, 0.1)
    assert {p.ndim for p in decaying["params"]} == {2}
    assert any(p is model.embed.weight for p in others["params"])
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    count = sum(len(group["params"]) for group in (decaying, others))
    assert count == len(list(model.parameters()))


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    Trainer(tiny_training(), tmp_path, tensorboard=True).run()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"held_out_accuracy" in events.read_bytes()
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="needs tensorboardX; pip install"):
        Trainer(tiny_training(), tmp_path, tensorboard=True)


def test_tensorboard_forgets_what_is_done_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    training = tiny_training(save_every=4)
    with pytest.raises(StopError):
        Trainer(training, tmp_path, tensorboard=True).run(stop_at(7))
    (first,) = (tmp_path / "tensorboard").iterdir()
    Trainer(training, tmp_path, tensorboard=True).run()
    (second,) = set((tmp_path / "tensorboard").iterdir()) - {first}
    began = [e.step for e in events(second) if e.HasField("session_log")]
    assert began == [5]
    steps = [e.step for e in events(second) if e.HasField("summary")]
    assert sorted(set(steps)) == [6, 8, 10, 12]


def events(path: Path) -> list[Any]:
    """What is in a file of TensorBoard: length, checksum, event, checksum, and so on."""
    from tensorboardX.proto.event_pb2 import Event

    content, found = path.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    return found


def test_without_fabric_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightning_fabric", None)
    with pytest.raises(ConfigError, match=r"seqmix\[train\]"):
        Trainer(tiny_training(), tmp_path)
