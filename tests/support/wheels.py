"""Environments of Python with Cordwood as a user has it: its wheel, and the packages that it asks for.

Nothing is fetched: the packages are links to those that the tests themselves run with. The source tree is not
on the path of such an environment.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The files that a build needs; kernels come as they are already compiled.
_SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def run(
        self, *arguments: str, directory: Path, expected: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with *arguments* in *directory*; fail with its output if it exits otherwise."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=directory,
            env={**inherited, "PYTHONPYCACHEPREFIX": str(self.directory / "pyc"), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == expected, done.stdout
        return done


#: What the tests set for themselves.
_NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT", "PYTEST_XDIST", "PYTHON", "COV_", "CORDWOOD_")


def environment_with(directory: Path, wheel: Path, *packages: str) -> Environment:
    """Make an environment in *directory* with *wheel*, what it requires, and *packages* with theirs."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = directory / "lib" / version / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (found,) = site.glob("cordwood-*.dist-info")
    required = metadata.PathDistribution(found).requires or []
    for name in sorted(_closure([*_plain(required), *packages])):
        for part in {file.parts[0] for file in metadata.distribution(name).files or []}:
            source = Path(str(metadata.distribution(name).locate_file(part)))
            if part not in ("..", "__pycache__") and not (site / part).exists():
                (site / part).symlink_to(source)
    return Environment(directory)


def _plain(requirements: list[str]) -> list[str]:
    """Return the names of requirements that need no extra, of this system."""
    names = []
    for requirement in requirements:
        name, _, condition = requirement.partition(";")
        if "extra" not in condition and "win32" not in condition and "Windows" not in condition:
            names.append(re.split(r"[^\w.-]", name.strip(), maxsplit=1)[0])
    return names


def _closure(names: list[str]) -> set[str]:
    """Return *names* and everything they require that is installed; the rest is for other versions."""
    found: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in found:
            try:
                names += _plain(metadata.distribution(name).requires or [])
                found.add(name)
            except metadata.PackageNotFoundError:
                continue
    return found


def built_wheel(factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this source tree, built once for all processes of a run."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with _locked(shared / "wheel.lock"):
        place = shared / "wheel"
        if not place.exists():
            _build(shared / "wheel-source", shared / "wheel.partial")
            (shared / "wheel.partial").rename(place)
    (wheel,) = place.glob("*.whl")
    return wheel


def _build(source: Path, target: Path) -> None:
    source.mkdir()
    for name in _SOURCES:
        shutil.copy2(ROOT / name, source)
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    )
    # Compiling takes half a minute. What is newer than its sources is not compiled again.
    tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    kernels = source / "build" / f"lib.{tag}" / "cordwood" / "kernels"
    kernels.mkdir(parents=True)
    for compiled in (ROOT / "src" / "cordwood" / "kernels").glob("*.so"):
        shutil.copy2(compiled, kernels)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(target), "."], cwd=source, check=True
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
