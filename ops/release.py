"""The release checklist, as a script: `python ops/release.py`. It changes nothing outside of build/release.

It stops at the first step that fails and says what to do. After the last step the files in build/release are
what is to be uploaded, and the notes are the part of CHANGELOG.md that it printed.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "release"
#: Every extra that a user can ask for. Each is installed alone, in an environment of its own.
EXTRAS = ("", "fast", "signed", "oauth", "bucket", "traces", "testing", "spark", "pipelines")
#: A larger wheel has something in it that it should not have.
WHEEL_BYTES_MAX = 4 << 20
#: What a wheel consists of, beside the file py.typed: modules, their types, compiled kernels, metadata.
WHEEL_SUFFIXES = (".py", ".pyi", ".so")
#: What is committed for those who commit, and is in no sdist.
NOT_IN_SDIST = (".gitignore", ".ci/")


def run(*command: object, where: Path = ROOT) -> str:
    """Run a command and return what it printed; end the script with its words if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=where, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def version_of(source: str) -> str:
    """Return the version that the package states in its source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise SystemExit("src/cordwood/__init__.py states no __version__")


def notes_for(version: str, changelog: str) -> str:
    """Return the part of the changelog about *version*.

    Raises:
        SystemExit: If there is none, or if it has no date yet.
    """
    found = re.search(
        rf"^## {re.escape(version)}, (.+?)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no part for {version}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found.group(1)):
        raise SystemExit(f"CHANGELOG.md says {found.group(1)!r} where the date of {version} belongs")
    return found.group(2).strip()


def check_tree() -> None:
    """Release what is committed, and nothing else."""
    left = run("git", "status", "--porcelain")
    if left:
        sys.exit(f"commit or remove these first:\n{left}")


def problems_of_sdist(names: Collection[str], committed: Collection[str]) -> list[str]:
    """Return a line for each committed file that an sdist lacks, and for each product of a build.

    The names begin with the directory that unpacking makes.
    """
    found = {name.partition("/")[2] for name in names}
    wanted = {name for name in committed if not name.startswith(NOT_IN_SDIST)}
    missing = [f"the sdist lacks {name}" for name in sorted(wanted - found)]
    built = [name for name in sorted(found) if name.endswith((".c", ".so", ".pyc"))]
    return missing + [f"the sdist has {name}, which a build makes" for name in built]


def problems_of_wheel(names: Collection[str]) -> list[str]:
    """Return a line for each of the *names* in a wheel that its user does not need, or if it has no types."""
    problems = [] if "cordwood/py.typed" in names else ["the wheel lacks cordwood/py.typed"]
    for name in sorted(names):
        path = PurePosixPath(name)
        package = path.parts[0] in ("cordwood", "pyspark_cordwood")
        needed = package and (path.suffix in WHEEL_SUFFIXES or path.name == "py.typed")
        if not needed and not path.parts[0].endswith(".dist-info"):
            problems.append(f"the wheel has {name}, which its user does not need")
    return problems


def check_contents(sdist: Path, wheel: Path) -> None:
    """Compare what is in the files with what is committed."""
    with tarfile.open(sdist) as archive:
        in_sdist = [member.name for member in archive.getmembers() if member.isfile()]
    with zipfile.ZipFile(wheel) as zipped:
        in_wheel = zipped.namelist()
    committed = run("git", "ls-files").splitlines()
    problems = problems_of_sdist(in_sdist, committed) + problems_of_wheel(in_wheel)
    if problems:
        sys.exit("\n".join(problems))
    print(f"the sdist has all {len(committed)} files that are committed, the wheel {len(in_wheel)} files")


def build(python: Path) -> tuple[Path, Path]:
    """Build sdist and wheel, and return them."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    run(python, "-m", "pip", "install", "--quiet", "build", "twine")
    run(python, "-m", "build", "--outdir", OUTPUT)
    (sdist,), (wheel,) = OUTPUT.glob("*.tar.gz"), OUTPUT.glob("*.whl")
    if wheel.stat().st_size > WHEEL_BYTES_MAX:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {WHEEL_BYTES_MAX:,}")
    run(python, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def environment(directory: Path) -> Path:
    """Make an empty environment and return its Python."""
    venv.create(directory, clear=True, with_pip=True)
    return directory / "bin" / "python"


def try_extra(package: Path, extra: str) -> None:
    """Install *package* with one extra into an empty environment, and run the smoke test there."""
    python = environment(ROOT / "build" / "release-environment")
    wanted = f"{package}[{extra}]" if extra else str(package)
    run(python, "-m", "pip", "install", "--quiet", wanted)
    required = ["--require", extra] if extra else []
    said = run(python, ROOT / "ops" / "smoke.py", *required, where=ROOT / "build")
    print(f"  {extra or 'no extra'}: {said.splitlines()[0]}")


def main() -> None:
    """Go through the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unreleased", action="store_true", help="try it before the changelog has a date")
    unreleased = parser.parse_args().unreleased
    version = version_of((ROOT / "src" / "cordwood" / "__init__.py").read_text())
    if not unreleased:
        check_tree()
        notes = notes_for(version, (ROOT / "CHANGELOG.md").read_text())
    builder = environment(ROOT / "build" / "release-builder")
    sdist, wheel = build(builder)
    for built in (sdist, wheel):
        print(f"built {built.name}, {built.stat().st_size:,} bytes")
    check_contents(sdist, wheel)
    for extra in EXTRAS:
        try_extra(wheel, extra)
    print("  from the sdist:")
    try_extra(sdist, "")
    if unreleased:
        return
    print(f"\nNow: make test, git tag v{version}, twine upload {OUTPUT.relative_to(ROOT)}/*\n\n{notes}")


if __name__ == "__main__":
    main()
