"""``seqmix new mixer``: a package of one's own, which passes its tests as it is written."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from seqmix import registry
from seqmix.errors import ConfigError
from seqmix.whole_folder import whole_folder

__all__ = ["write_mixer_package"]

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 40
_TEMPLATES = {
    "README.md": "README.md.template",
    "pyproject.toml": "pyproject.toml.template",
    "{package}/__init__.py": "init.py.template",
    "{package}/mixer.py": "mixer.py.template",
    "{package}/py.typed": None,
    "tests/test_{name}.py": "test.py.template",
}
"""Every file that is written, and what it is made from; None for an empty one."""


def write_mixer_package(name: str, out: Path | None) -> None:
    """Write the package of mixer ``name`` to ``out``, by default ``seqmix-NAME`` right here.

    The folder appears whole or not at all. Raises ConfigError for a name that is none or is taken,
    and for a folder that exists.
    """
    names = _names(name)
    folder = Path(names["distribution"]) if out is None else out
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists; choose another folder with --out")
    with whole_folder(folder, "pyproject.toml") as aside:
        for path, template in _TEMPLATES.items():
            _write(aside / path.format(**names), template, names)
    for written in sorted(folder.rglob("*.*")):
        print(written)
    print(
        f"\npip install -e {folder}\npython -m pytest {folder}\nseqmix check {name}\n\n"
        f"The mixer is in {folder / names['package'] / 'mixer.py'}."
    )


def _names(name: str) -> dict[str, str]:
    """What things are called in the package; ConfigError when the name cannot be used."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"mixer '{name}': a name is up to {_LONGEST} lower-case letters, digits and single _, "
            "and begins with a letter, such as my_mixer"
        )
    if taken := registry.providers("mixers", name):
        origins = " and ".join(c.origin for c in taken)
        raise ConfigError(f"there is a mixer '{name}' already, of {origins}; choose another name")
    package = f"seqmix_{name}"
    if find_spec(package) is not None:
        raise ConfigError(f"there is a package '{package}' already; choose another name")
    title = "".join(part.capitalize() for part in name.split("_")).removesuffix("Mixer")
    return {
        "name": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "Class": f"{title}Mixer",
        "version": _own_version(),
    }


def _own_version() -> str:
    from importlib.metadata import version

    return version("seqmix")


def _write(path: Path, template: str | None, names: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ""
    if template is not None:
        source = files("seqmix.cli") / "new_mixer" / template
        text = Template(source.read_text(encoding="utf-8")).substitute(names)
    path.write_text(text, encoding="utf-8")
