"""Programs that PyPI does not have: where they are found, and where what they need is kept.

Everything that is fetched or built lies under ``.interop/``, which git ignores; once it is there, nothing
is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".interop"
#: What fetching one thing may take; Spark is 460 MB.
FETCH_SECONDS_MAX = 900


class ToolMissing(unittest.SkipTest):
    """Something is neither here nor can it be fetched. pytest skips the test that meets this, by name."""


def program(name: str) -> str:
    """Return the path of an installed program."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not installed")
    return found


def fetch(
    command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Run *command* in *directory*, where it puts what it downloads; what fails counts as not to be had."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
    )
    if done.returncode:
        lines = done.stdout.strip().splitlines()
        said = next((line for line in lines if "err" in line.lower()), "".join(lines[-1:]))
        raise ToolMissing(f"{Path(command[0]).name} could not fetch what is needed: {said[:300]}")


def kept(name: str, pins: Sequence[Path], fill: Callable[[Path], None]) -> Path:
    """Return the directory *name* of the cache, filled by *fill* if it is not there yet.

    *pins* are the files that say what belongs into it: when one of them changes, it is filled anew. A
    directory that was not filled to the end is not used.
    """
    digest = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()[:12]
    directory = CACHE / f"{name}-{digest}"
    if not directory.exists():
        partial = CACHE / f"{name}-{digest}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        fill(partial)
        partial.rename(directory)
    return directory


def maven_jars(pom: Path) -> list[Path]:
    """Return the jars that a Maven project needs at run time, checked against Maven's checksums."""

    def fill(directory: Path) -> None:
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        options = ["-B", "-q", "--strict-checksums", f"-Dmaven.repo.local={CACHE / 'maven'}"]
        scope = ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
        fetch([program("mvn"), *options, "-f", pom, plugin, *scope], directory)

    return sorted(kept(f"jars-{pom.parent.name}", [pom], fill).glob("*.jar"))
