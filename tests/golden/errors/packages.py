"""Plugins that are missing, broken, blocked, or at odds with each other.

The distributions are those of ``tests/core/plugins_installed``. Every situation gets the tester
of environment variables.
"""

from __future__ import annotations

import pytest
from tests.golden.errors.messages import Situations

from seqmix import hooks, registry
from seqmix_ir.graph import Module

__all__ = ["PLUGIN"]

PLUGIN = Situations("plugin")


@PLUGIN
def import_failure(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "broken_task")


@PLUGIN
def module_that_exits(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "leaving_task")


@PLUGIN
def entry_point_to_nothing(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "empty_task")


@PLUGIN
def two_distributions_with_one_name(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "claimed_twice")


@PLUGIN
def newer_major_interface(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "next_major")


@PLUGIN
def newer_minor_interface(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "next_minor")


@PLUGIN
def older_major_interface(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "past")


@PLUGIN
def interface_that_is_no_version(env: pytest.MonkeyPatch) -> None:
    registry.get("tasks", "odd")


@PLUGIN
def blocked_by_its_distribution(env: pytest.MonkeyPatch) -> None:
    env.setenv("SEQMIX_BLOCK_PLUGINS", "throwaway-good")
    registry.get("mixers", "gain")


@PLUGIN
def blocked_by_its_name(env: pytest.MonkeyPatch) -> None:
    env.setenv("SEQMIX_BLOCK_PLUGINS", "gain")
    registry.get("mixers", "gain")


@PLUGIN
def block_list_with_a_typo(env: pytest.MonkeyPatch) -> None:
    env.setenv("SEQMIX_BLOCK_PLUGINS", "throwaway-goood")
    registry.names("mixers")  # A warning, and warnings are errors here.


@PLUGIN
def unknown_name(env: pytest.MonkeyPatch) -> None:
    registry.get("mixers", "atention")


@PLUGIN
def unknown_kind(env: pytest.MonkeyPatch) -> None:
    registry.get("mixer", "attention")


@PLUGIN
def not_of_its_kind(env: pytest.MonkeyPatch) -> None:
    registry.get("mixers", "no_mixer")


@PLUGIN
def calls_itself_something_else(env: pytest.MonkeyPatch) -> None:
    registry.get("ops", "throwaway.misnamed")


@PLUGIN
def strict_about_every_plugin(env: pytest.MonkeyPatch) -> None:
    env.setenv("SEQMIX_STRICT_PLUGINS", "1")
    registry.get("mixers", "gain")


@PLUGIN
def registered_by_hand_twice(env: pytest.MonkeyPatch) -> None:
    with (
        registry.register_local("tasks", "mine", "a task"),
        registry.register_local("tasks", "mine", "another"),
    ):
        pass


def only_hook(env: pytest.MonkeyPatch, name: str) -> None:
    others = {"good_hooks", "misspelt", "unknown_argument", "raising", "no_rules", "future"}
    env.setenv("SEQMIX_BLOCK_PLUGINS", ",".join(sorted(others - {name} | {"throwaway-broken"})))
    env.setenv("SEQMIX_STRICT_PLUGINS", "1")


@PLUGIN
def misspelt_hook(env: pytest.MonkeyPatch) -> None:
    only_hook(env, "misspelt")
    hooks.rewrites("reference")


@PLUGIN
def hook_with_an_unknown_argument(env: pytest.MonkeyPatch) -> None:
    only_hook(env, "unknown_argument")
    hooks.rewrites("reference")


@PLUGIN
def hook_that_raises(env: pytest.MonkeyPatch) -> None:
    only_hook(env, "raising")
    hooks.rewrites("reference")


@PLUGIN
def hook_that_chooses_an_unknown_backend(env: pytest.MonkeyPatch) -> None:
    only_hook(env, "raising")
    hooks.choose_backend(Module("m"), ["reference", "torch"])


@PLUGIN
def hook_that_returns_no_rules(env: pytest.MonkeyPatch) -> None:
    only_hook(env, "no_rules")
    hooks.rewrites("reference")
