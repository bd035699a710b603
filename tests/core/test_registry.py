"""The registry, with plugins that pip really installed: good, broken, colliding, too new."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import seqmix
from seqmix import registry
from seqmix.config import ModelConfig
from seqmix.errors import IRError, PluginError


@pytest.fixture(autouse=True)
def _plugins(plugins: Path) -> None:
    """Every test here sees the samples."""


def imported() -> set[str]:
    return {name for name in sys.modules if name.startswith("throwaway_")}


def message(kind: str, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        registry.get(kind, name)
    return str(caught.value)


def states() -> dict[str, str]:
    return {s.contribution.name: s.state for s in registry.statuses()}


def test_names_import_nothing() -> None:
    assert {"gain", "no_mixer", "attention", "swiglu"} <= set(registry.names("mixers"))
    assert registry.names("tasks") == sorted(registry.names("tasks"))
    assert {"broken_task", "claimed_twice", "next_major"} <= set(registry.names("tasks"))
    assert "good_hooks" not in [c.name for c in registry.contributions()]
    assert imported() == set()


def test_get_imports_one_module() -> None:
    assert registry.get("tasks", "good_task") == "the good task"
    assert imported() == {"throwaway_good", "throwaway_good.tasks"}


def test_constants_of_a_module_are_in_memory_wherever_it_is_first_used() -> None:
    with torch.device("meta"):
        registry.get("mixers", "gain")
    assert sys.modules["throwaway_good.mixer"].ONE.item() == 1


def test_a_third_partys_mixer_is_as_good_as_any() -> None:
    model = seqmix.Model(with_mixer({"kind": "gain", "gain": 0.5}))
    ids, positions = torch.tensor([[1, 2, 3]]), torch.arange(3).unsqueeze(0)
    logits, _ = model(ids, positions)
    assert logits.shape == (1, 3, 7)
    with pytest.raises(seqmix.ConfigError, match="unknown key 'gian'; did you mean 'gain'"):
        seqmix.Model(with_mixer({"kind": "gain", "gian": 1}))


def with_mixer(kind: dict[str, Any]) -> ModelConfig:
    blocks = [{"steps": [kind]}]
    return ModelConfig.model_validate(
        {"vocab_size": 7, "width": 6, "context_length": 9, "blocks": blocks}
    )


def test_a_broken_import_is_told_when_asked_for() -> None:
    text = message("tasks", "broken_task")
    assert "task 'broken_task' of throwaway-broken 0.3.1" in text
    assert "ModuleNotFoundError: No module named 'a_module_that_nobody_has'" in text
    assert "SEQMIX_BLOCK_PLUGINS=throwaway-broken" in text
    with pytest.raises(PluginError) as again:
        registry.get("tasks", "broken_task")
    assert isinstance(again.value.__cause__, ModuleNotFoundError)
    assert registry.get("tasks", "good_task") == "the good task"


def test_a_module_that_exits_does_not_take_the_process_along() -> None:
    assert "SystemExit: no licence" in message("tasks", "leaving_task")


def test_an_entry_point_to_nothing() -> None:
    assert "has no attribute 'task'" in message("tasks", "empty_task")


def test_errors_asked_for_again_do_not_grow() -> None:
    lengths = []
    for _ in range(3):
        with pytest.raises(PluginError) as caught:
            registry.get("tasks", "broken_task")
        lengths.append(len(caught.traceback))
    assert lengths[1] == lengths[2]


def test_two_distributions_with_one_name_poison_that_name_only() -> None:
    text = message("tasks", "claimed_twice")
    assert "throwaway-first 1.0 and throwaway-second 2.5" in text
    assert "SEQMIX_BLOCK_PLUGINS" in text
    assert imported() == set()
    assert registry.get("tasks", "good_task") == "the good task"


def test_one_name_with_one_value_counts_once() -> None:
    assert registry.get("tasks", "said_twice") == "first"
    assert len(registry.providers("tasks", "said_twice")) == 1


def test_blocking_one_of_two_distributions_frees_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", "throwaway-first")
    assert registry.get("tasks", "claimed_twice") == "second"


@pytest.mark.parametrize(
    "entry", ["throwaway.good", "Throwaway_Good", "good_task", " , good_task,"]
)
def test_blocked_by_distribution_or_by_name(monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", entry)
    assert "good_task" not in registry.names("tasks")
    text = message("tasks", "good_task")
    assert text == "task 'good_task' of Throwaway.Good 1.2.0 is blocked by SEQMIX_BLOCK_PLUGINS"
    assert ("gain" in registry.names("mixers")) == ("good_task" in entry)


def test_an_entry_that_blocks_nothing_is_a_warning_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", "good_hooks,throwaway-first,thrwaway")
    with pytest.warns(UserWarning, match="lists 'thrwaway', which is neither") as caught:
        registry.names("tasks")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.names("mixers")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("next_major", "plugin interface 2.0, this seqmix has 1.0; update seqmix"),
        ("next_minor", "plugin interface 1.99, this seqmix has 1.0; update seqmix"),
        ("past", "plugin interface 0.3, this seqmix has 1.0; update throwaway-future"),
        ("odd", "api should be (major, minor), found '1.0'"),
    ],
)
def test_interface_versions(name: str, expected: str) -> None:
    assert message("tasks", name).startswith(f"task '{name}' of throwaway-future 9.0: ")
    assert expected in message("tasks", name)


def test_what_is_loaded_must_be_of_its_kind() -> None:
    text = message("mixers", "no_mixer")
    assert "should be a subclass of seqmix.mixer.SequenceMixer, found <function make" in text
    assert "throwaway-wrong 0.1" in text


def test_a_class_must_call_itself_what_its_entry_point_does() -> None:
    assert "calls itself 'throwaway.other'" in message("ops", "throwaway.misnamed")


def test_unknown_names_and_kinds() -> None:
    text = message("mixers", "atention")
    assert text.startswith("no mixer 'atention'; did you mean 'attention'")
    installed = registry.names("mixers")
    assert {"attention", "gain", "mlp", "no_mixer"} <= set(installed)
    assert f"installed: {', '.join(installed)}" in text
    with pytest.raises(PluginError, match="no kind 'mixer'; did you mean 'mixers'"):
        registry.names("mixer")


def test_strict_raises_at_once_and_chains_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="SEQMIX_STRICT_PLUGINS is set: ") as caught:
        registry.get("tasks", "good_task")
    assert caught.value.__cause__ is not None
    monkeypatch.setenv("SEQMIX_STRICT_PLUGINS", "0")
    assert registry.get("tasks", "good_task") == "the good task"


def test_strict_is_content_when_what_is_broken_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "throwaway-broken,throwaway-second,throwaway-future,throwaway-wrong,throwaway-hooks"
    monkeypatch.setenv("SEQMIX_STRICT_PLUGINS", "1")
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", bad)
    assert registry.get("tasks", "claimed_twice") == "first"


def test_statuses_list_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQMIX_BLOCK_PLUGINS", "throwaway-future")
    found = states()
    good = {"good_task", "gain", "throwaway.double", "said_twice", "good_hooks", "raising"}
    failed = {
        "broken_task", "leaving_task", "empty_task", "claimed_twice", "no_mixer",
        "throwaway.misnamed", "broken_hooks", "misspelt", "unknown_argument",
    }  # fmt: skip
    blocked = {"next_major", "next_minor", "past", "odd"}
    assert {name: found[name] for name in good} == dict.fromkeys(good, "ok")
    assert {name: found[name] for name in failed} == dict.fromkeys(failed, "failed")
    assert {name: found[name] for name in blocked} == dict.fromkeys(blocked, "blocked")
    assert {"attention", "rope", "reference"} <= set(found)


def test_the_op_table_loads_ops_of_plugins_when_met() -> None:
    table = registry.op_table()
    assert {"add", "throwaway.double"} <= set(table.names())
    assert imported() == set()
    assert table.lookup("throwaway.double").operands == ("x",)
    assert imported() == {"throwaway_good", "throwaway_good.ops"}
    with pytest.raises(IRError, match=r"unknown op 'throwaway\.doubel'; did you mean"):
        table.lookup("throwaway.doubel")
    with pytest.raises(PluginError, match="calls itself"):
        table.lookup("throwaway.misnamed")


def test_register_local() -> None:
    with registry.register_local("tasks", "mine", 5):
        assert "mine" in registry.names("tasks")
        assert registry.get("tasks", "mine") == 5
        with (
            pytest.raises(PluginError, match="'mine' is registered by hand already: 5"),
            registry.register_local("tasks", "mine", 6),
        ):
            pass
    assert "mine" not in registry.names("tasks")
    with registry.register_local("tasks", "good_task", 7):
        assert registry.get("tasks", "good_task") == 7
    assert registry.get("tasks", "good_task") == "the good task"
    with (
        pytest.raises(PluginError, match="no kind 'task'"),
        registry.register_local("task", "x", 1),
    ):
        pass


def test_register_local_cleans_up_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), registry.register_local("tasks", "mine", 5):
        raise ZeroDivisionError
    assert "mine" not in registry.names("tasks")
