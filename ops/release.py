"""The release checklist, as a script: `python ops/release.py`. It changes nothing outside of build/.

It stops at the first step that fails and says what to do. After the last step the files in build/release are
what is to be uploaded, and the notes are the part of CHANGELOG.md that it printed.

Before the first upload, `[project.urls]` in pyproject.toml must have the public addresses of the repository
and of the documentation: without them the links of the description are plain text on a package index. With
``--upload`` the script refuses to begin without them.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "release"
#: Every extra that a user can ask for. Each is installed alone, in an environment of its own.
EXTRAS = ("", "fast", "signed", "oauth", "bucket", "traces", "testing", "spark", "pipelines")
#: The versions of Python that it is for. Each is tried if it is found here.
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: Where to look for them beside PATH: the directories of pyenv and uv.
PLACES = (
    Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
    Path.home() / ".local" / "share" / "uv" / "python",
)
#: What `[project.urls]` must have before the first upload.
URLS = ("Documentation", "Repository")
#: A larger wheel has something in it that it should not have.
WHEEL_BYTES_MAX = 4 << 20
#: What a wheel consists of, beside the file py.typed: modules, their types, compiled kernels, metadata.
WHEEL_SUFFIXES = (".py", ".pyi", ".so")
#: What is committed for those who commit, and is in no sdist.
NOT_IN_SDIST = (".gitignore", ".ci/")


def run(*command: object, where: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it printed; end the script with its words if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
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


def problems_of_urls(project: Mapping[str, Any]) -> list[str]:
    """Return a line for each public address that `[project.urls]` lacks."""
    urls = project.get("urls", {})
    return [f"pyproject.toml has no {name} in [project.urls]" for name in URLS if not urls.get(name)]


def find_interpreters(path: str, places: Collection[Path] = PLACES) -> dict[str, Path | None]:
    """Return a Python of each version, from *path*, as a shell has it, or *places*; None where none runs."""
    return {version: next(_running(version, path, places), None) for version in VERSIONS}


def _running(version: str, path: str, places: Collection[Path]) -> Iterator[Path]:
    found = [shutil.which(f"python{version}", path=path)]
    for place in places:
        found += sorted(map(str, place.glob(f"*{version}.*/bin/python{version}")), reverse=True)
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in filter(None, found):
        # pyenv puts programs on the path that only say that their version is not chosen.
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            yield Path(python)


def environment(directory: Path, interpreter: str | Path = sys.executable) -> Path:
    """Make an empty environment and return its Python."""
    shutil.rmtree(directory, ignore_errors=True)
    run(interpreter, "-m", "venv", directory)
    return directory / "bin" / "python"


def try_extra(package: Path, extra: str, interpreter: str | Path = sys.executable) -> str:
    """Install *package* with one extra into an empty environment, and run the smoke test there."""
    python = environment(ROOT / "build" / "release-environment", interpreter)
    wanted = f"{package}[{extra}]" if extra else str(package)
    run(python, "-m", "pip", "install", "--quiet", wanted)
    required = ["--require", extra] if extra else []
    return run(python, ROOT / "ops" / "smoke.py", *required, where=ROOT / "build")


def try_version(sdist: Path, interpreter: Path, *, compiler: str | None = None) -> str:
    """Build a wheel of *sdist* with another Python, with *compiler* if it is given, and try it there."""
    output = ROOT / "build" / "release-wheel"
    shutil.rmtree(output, ignore_errors=True)
    python = environment(ROOT / "build" / "release-environment", interpreter)
    # Not from the cache, which has a wheel that another compiler built.
    building = ["wheel", "--quiet", "--no-cache-dir", "--no-deps", "--wheel-dir", output, sdist]
    run(python, "-m", "pip", *building, **({} if compiler is None else {"CC": compiler}))
    (wheel,) = output.glob("*.whl")
    said = try_extra(wheel, "", interpreter)
    expected = "compiled kernels" if compiler is None and shutil.which("cc") else "plain kernels"
    if expected not in said:
        sys.exit(f"expected {expected} of {interpreter}, CC={compiler}:\n{said}")
    return f"{said.splitlines()[0]}, {expected}"


def try_versions(sdist: Path) -> list[str]:
    """Try each version of Python that is found, and a build without a compiler; return the other versions."""
    found = find_interpreters(os.environ.get("PATH", ""))
    for version, interpreter in found.items():
        if interpreter is not None:
            print(f"  Python {version}: {try_version(sdist, interpreter)}", flush=True)
    print(f"  CC=/bin/false: {try_version(sdist, Path(sys.executable), compiler='/bin/false')}", flush=True)
    return [version for version, interpreter in found.items() if interpreter is None]


def main() -> None:
    """Go through the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unreleased", action="store_true", help="try it before the changelog has a date")
    parser.add_argument("--upload", action="store_true", help="upload to the package index at the end")
    given = parser.parse_args()
    unreleased: bool = given.unreleased
    if given.upload:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        problems = problems_of_urls(project)
        if unreleased or problems:
            sys.exit("\n".join(problems or ["what is not released is not uploaded"]))
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
        print(f"  {extra or 'no extra'}: {try_extra(wheel, extra).splitlines()[0]}", flush=True)
    print("from the sdist:")
    missing = try_versions(sdist)
    if missing:
        print(f"  not tried, because not found here: Python {', '.join(missing)}")
    if unreleased:
        return
    if given.upload:
        subprocess.run([builder, "-m", "twine", "upload", sdist, wheel], check=True)
        print(f"\nNow: git tag v{version}\n\n{notes}")
        return
    problems = problems_of_urls(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    for line in problems:
        print(f"before the first upload: {line}")
    print(f"\nNow: make test, git tag v{version}, python ops/release.py --upload\n\n{notes}")


if __name__ == "__main__":
    main()
