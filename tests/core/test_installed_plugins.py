"""Broken, colliding, foreign, misspelt and blocked plugins, as really installed distributions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GOOD = """
    from seqmix import Strict
    from seqmix.mixer import SequenceMixer

    class Same(SequenceMixer):
        Config = Strict
        def __init__(self, config, width):
            super().__init__()
        def forward(self, x, state, ctx):
            return x * ctx.valid.unsqueeze(-1).to(x.dtype), {}
        def flops(self, batch_size, seq_len):
            return 0

    class Future(Same):
        api = (2, 0)

    class NotAMixer:
        pass
"""
DISTRIBUTIONS = {
    "sm-good": (GOOD, {"mixers": {"same": "sm_good:Same", "twin": "sm_good:Same"}}),
    "sm-twin": (GOOD, {"mixers": {"twin": "sm_twin:Same"}}),
    "sm-broken": ("import no_such_module\n", {"mixers": {"broken": "sm_broken:Mixer"}}),
    "sm-future": (GOOD, {"mixers": {"future": "sm_future:Future"}}),
    "sm-foreign": (GOOD, {"mixers": {"foreign": "sm_foreign:NotAMixer"}}),
    "sm-misspelt": (
        """
        from seqmix import hookimpl

        @hookimpl
        def seqmix_rewritess(backend):
            return []
        """,
        {"hooks": {"misspelt": "sm_misspelt"}},
    ),
    "sm-raising": (
        """
        from seqmix import hookimpl

        @hookimpl
        def seqmix_rewrites(backend):
            raise ValueError("no rules today")
        """,
        {"hooks": {"raising": "sm_raising"}},
    ),
    "sm-rules": (
        """
        from seqmix import hookimpl

        @hookimpl
        def seqmix_rewrites(backend):
            return [lambda b, op: None]

        @hookimpl
        def seqmix_choose_backend(module, candidates):
            return candidates[-1]
        """,
        {"hooks": {"rules": "sm_rules"}},
    ),
}


@dataclass(frozen=True)
class Site:
    """A folder in which distributions are installed."""

    folder: Path

    def python(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-c", textwrap.dedent(code)], **environment)

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-m", "seqmix", *arguments], **environment)

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **environment}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=120, check=False
        )


def wheel(folder: Path, name: str, code: str, points: dict[str, dict[str, str]]) -> Path:
    """A wheel with one module and its entry points."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.5.dist-info"
    groups = [
        "\n".join([f"[seqmix.{kind}]", *(f"{k} = {v}" for k, v in entries.items())])
        for kind, entries in points.items()
    ]
    files = {
        f"{module}.py": textwrap.dedent(code),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(groups) + "\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{module}-1.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    wheels = tmp_path_factory.mktemp("wheels")
    folder = tmp_path_factory.mktemp("site")
    paths = [str(wheel(wheels, name, *parts)) for name, parts in DISTRIBUTIONS.items()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), *paths], check=True, timeout=120)
    return Site(folder)


def asked(site: Site, name: str, **environment: str) -> str:
    """What asking for a mixer says."""
    result = site.python(
        f"""
        from seqmix import registry
        try:
            print("loaded", registry.get("mixers", "{name}").__name__)
        except Exception as error:
            print(type(error).__name__, error, "| cause:", type(error.__cause__).__name__)
        """,
        **environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def listed(site: Site, **environment: str) -> tuple[int, dict[tuple[str, str], Any]]:
    result = site.command("plugins", "--json", **environment)
    rows = json.loads(result.stdout)
    return result.returncode, {(row["name"], row["distribution"]): row for row in rows}


def test_a_third_party_mixer_is_found_and_conforms(site: Site) -> None:
    assert "loaded Same" in asked(site, "same")
    result = site.command("check", "same", "--backend", "torch", "--json")
    assert result.returncode == 0, result.stdout + result.stderr


def test_names_are_known_without_importing(site: Site) -> None:
    result = site.python(
        """
        import sys
        from seqmix import registry
        assert {"same", "broken", "future"} <= set(registry.names("mixers"))
        assert not [m for m in sys.modules if m.startswith("sm_")]
        assert "torch" not in sys.modules
        """
    )
    assert result.returncode == 0, result.stderr


def test_a_broken_plugin_names_origin_cause_and_remedy(site: Site) -> None:
    said = asked(site, "broken")
    for part in ("PluginError", "sm-broken 1.5", "no_such_module", "cause: ModuleNotFoundError"):
        assert part in said
    assert "SEQMIX_BLOCK_PLUGINS=sm-broken" in said
    assert "loaded Attention" in asked(site, "attention")


def test_two_plugins_with_one_name_poison_that_name_only(site: Site) -> None:
    said = asked(site, "twin")
    assert "PluginError" in said
    assert "sm-good 1.5 and sm-twin 1.5" in said
    assert "loaded Same" in asked(site, "twin", SEQMIX_BLOCK_PLUGINS="sm-twin")
    assert "loaded Same" in asked(site, "same")


def test_a_wrong_interface_version_is_named(site: Site) -> None:
    said = asked(site, "future")
    assert "PluginError" in said
    assert "interface 2.0, this seqmix has 1.0" in said


def test_a_class_of_the_wrong_kind_is_refused(site: Site) -> None:
    assert "should be a subclass of seqmix.mixer.SequenceMixer" in asked(site, "foreign")


def test_the_list_shows_everything_and_fails(site: Site) -> None:
    status, rows = listed(site)
    assert status == 1
    states = {key: row["status"] for key, row in rows.items()}
    assert states["same", "sm-good"] == "ok"
    assert states["attention", "seqmix"] == "ok"
    for key in (
        ("broken", "sm-broken"),
        ("twin", "sm-good"),
        ("twin", "sm-twin"),
        ("future", "sm-future"),
        ("misspelt", "sm-misspelt"),
    ):
        assert states[key] == "failed", key
    reason = rows["misspelt", "sm-misspelt"]["reason"]
    assert "seqmix_rewritess" in reason
    assert "sm-misspelt 1.5" in reason


def test_blocking_by_distribution_and_by_name(site: Site) -> None:
    blocked = "SM_Broken,twin,sm-future,foreign,sm-misspelt"
    status, rows = listed(site, SEQMIX_BLOCK_PLUGINS=blocked)
    assert status == 0
    assert rows["broken", "sm-broken"]["status"] == "blocked"
    assert rows["twin", "sm-good"]["status"] == "blocked"
    assert rows["same", "sm-good"]["status"] == "ok"
    assert "is blocked by SEQMIX_BLOCK_PLUGINS" in asked(site, "same", SEQMIX_BLOCK_PLUGINS="same")


def test_an_entry_that_blocks_nothing_is_a_warning(site: Site) -> None:
    result = site.python(
        "from seqmix import registry; registry.names('mixers'); registry.names('backends')",
        SEQMIX_BLOCK_PLUGINS="sm-brokn",
    )
    assert result.stderr.count("lists 'sm-brokn'") == 1
    result = site.python(
        "from seqmix import registry; registry.names('mixers')", SEQMIX_BLOCK_PLUGINS="raising"
    )
    assert "UserWarning" not in result.stderr


def test_strict_mode_raises_at_once(site: Site) -> None:
    said = asked(site, "attention", SEQMIX_STRICT_PLUGINS="1")
    assert "PluginError SEQMIX_STRICT_PLUGINS is set" in said


def test_hooks_are_isolated(site: Site) -> None:
    result = site.python(
        """
        import warnings
        from seqmix import hooks
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rules = hooks.rewrites("onnxruntime")
            chosen = hooks.choose_backend(None, ["a", "b"])
        print(len(rules), chosen)
        for warning in caught:
            print("WARNING", warning.message)
        """
    )
    assert result.returncode == 0, result.stderr
    first, *warned = result.stdout.splitlines()
    assert first == "1 ('b', 'rules (sm-rules 1.5)')"
    assert any("misspelt" in w and "seqmix_rewritess" in w for w in warned)
    assert any("raising (sm-raising 1.5)" in w and "no rules today" in w for w in warned)
    assert len(warned) == 2
