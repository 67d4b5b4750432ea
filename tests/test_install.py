"""What is installed: what importing costs, what the files of a release hold, and what runs them."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def script(name: str) -> types.ModuleType:
    """Import a script of ops/."""
    spec = importlib.util.spec_from_file_location(f"ops_{name}", ROOT / "ops" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded_by(statements: str) -> tuple[set[str], float]:
    """Return the modules that statements load in a new process, and the milliseconds they took."""
    code = (
        f"import time; began = time.perf_counter()\n{statements}\n"
        "print((time.perf_counter() - began) * 1000)\nimport sys; print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    took, modules = said.splitlines()
    return set(modules.split()), float(took)


def test_importing_loads_nothing_heavy() -> None:
    """Goal: under 100 ms. Not asserted, because the machine may be busy; what costs time is."""
    modules, took = loaded_by("import cordwood")
    ours = sorted(name for name in modules if name.startswith("cordwood."))
    print(f"{took:.0f} ms, {len(ours)} modules of ours")
    assert not {"numpy", "pyarrow", "pyspark", "asyncio", "confluent_kafka", "rich", "click"} & modules
    assert len(ours) < 20


def test_appending_and_reading_load_neither_numpy_nor_pyarrow() -> None:
    modules, _ = loaded_by(
        "import cordwood\nwith cordwood.open(':memory:') as log:\n"
        "    topic = log.topic('t'); topic.append(b'x'); assert len(list(topic.read())) == 1"
    )
    assert not {"numpy", "pyarrow", "pyspark"} & modules


def test_the_version_is_in_one_place() -> None:
    stated = script("release").version_of((ROOT / "src/cordwood/__init__.py").read_text())
    assert PROJECT["project"]["dynamic"].count("version") == 1
    elsewhere = [
        str(file.relative_to(ROOT))
        for file in [*ROOT.glob("src/**/*.py"), ROOT / "pyproject.toml", ROOT / "setup.py"]
        if re.search(rf"""["']{re.escape(stated)}["']""", file.read_text())
    ]
    assert elsewhere == ["src/cordwood/__init__.py"]


def test_the_release_notes_are_the_part_of_the_changelog_and_need_a_date() -> None:
    notes_for = script("release").notes_for
    changelog = (
        "# Changelog\n\n## 0.2.0, unreleased\n\n- soon\n\n## 0.1.0, 2026-11-18\n\n- first\n\n- second\n"
    )
    assert notes_for("0.1.0", changelog) == "- first\n\n- second"
    with pytest.raises(SystemExit, match="unreleased"):
        notes_for("0.2.0", changelog)
    with pytest.raises(SystemExit, match=r"no part for 0\.3\.0"):
        notes_for("0.3.0", changelog)


def test_an_sdist_has_everything_that_is_committed_and_nothing_that_a_build_makes() -> None:
    problems = script("release").problems_of_sdist
    committed = [".gitignore", ".ci/run", "Makefile", "CHANGELOG.md", "tests/test_a.py", "src/cordwood/a.pyx"]
    whole = [f"cordwood-1/{name}" for name in (*committed[2:], "PKG-INFO")]
    assert problems(whole, committed) == []
    assert problems(whole[1:], committed) == ["the sdist lacks Makefile"]
    assert problems([*whole, "cordwood-1/src/cordwood/a.c"], committed) == [
        "the sdist has src/cordwood/a.c, which a build makes"
    ]


def test_a_wheel_has_what_its_user_needs_and_no_source_of_a_kernel() -> None:
    problems = script("release").problems_of_wheel
    whole = [
        "cordwood/__init__.py",
        "cordwood/py.typed",
        "cordwood/kernels/_a.cpython-311-x86_64-linux-gnu.so",
    ]
    whole += ["cordwood/kernels/_a.pyi", "pyspark_cordwood/__init__.py", "cordwood-1.dist-info/RECORD"]
    assert problems(whole) == []
    assert problems(whole[:1]) == ["the wheel lacks cordwood/py.typed"]
    for name in ("cordwood/kernels/_a.c", "cordwood/kernels/_a.pyx", "tests/test_a.py", "docs/index.md"):
        assert problems([*whole, name]) == [f"the wheel has {name}, which its user does not need"]


def test_the_smoke_test_and_the_release_know_every_extra_for_users() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs"}
    assert set(script("smoke").EXTRAS) == extras
    assert set(script("release").EXTRAS) == {"", *extras}


def test_the_release_tries_each_python_that_runs_and_names_the_others(tmp_path: Path) -> None:
    """A program of pyenv that only says that its version is not chosen is none."""

    def program(name: str, script_: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script_}\n")
        path.chmod(0o755)
        return path

    first = program("bin/python3.11", "echo 3.11")
    program("bin/python3.12", "exit 127")
    second = program("versions/3.12.1/bin/python3.12", "echo 3.12")
    program("versions/3.13.0/bin/python3.13", "echo 3.9")
    found = script("release").find_interpreters(
        str(tmp_path / "bin"), [tmp_path / "versions", tmp_path / "no"]
    )
    assert found == {"3.11": first, "3.12": second, "3.13": None, "3.14": None}
    classifiers = tuple(each.split("-*")[0] for each in PROJECT["tool"]["cibuildwheel"]["build"].split())
    assert tuple(f"cp{version.replace('.', '')}" for version in script("release").VERSIONS) == classifiers


def test_nothing_is_uploaded_before_the_links_of_the_description_lead_somewhere() -> None:
    """The repository has no public address yet. Whoever uploads it first has to give one."""
    problems = script("release").problems_of_urls
    assert problems({"urls": {"Documentation": "https://a.example", "Repository": "https://b.example"}}) == []
    lines = problems(PROJECT["project"])
    assert lines == [
        f"pyproject.toml has no {name} in [project.urls]" for name in ("Documentation", "Repository")
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "ops/release.py"), "--upload"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()) == (1, lines)


def test_a_server_that_cannot_sync_is_not_started_again_for_ever() -> None:
    """systemd counts starts within an interval: its default of 10 s ends before the third."""
    unit = (ROOT / "ops/systemd/cordwood.service").read_text()
    sections = dict(re.findall(r"^\[(\w+)\]\n(.*?)(?=^\[|\Z)", unit, re.MULTILINE | re.DOTALL))

    def number(section: str, name: str) -> int:
        found = re.search(rf"^{name}=(\d+)$", sections[section], re.MULTILINE)
        assert found is not None, f"{name} in [{section}]"
        return int(found.group(1))

    # systemd reads both limits in [Unit] alone.
    burst, interval = number("Unit", "StartLimitBurst"), number("Unit", "StartLimitIntervalSec")
    assert "StartLimit" not in sections["Service"]
    # Every start may take as long as opening a large directory before it fails.
    slowest_start = 60
    assert interval > burst * (number("Service", "RestartSec") + slowest_start)
    assert burst >= 2, "one bad moment is no reason to stay down"


def test_the_smoke_test_passes_here(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ops/smoke.py"), "--require", "signed"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert [line.split(":")[0] for line in said.stdout.splitlines()[1:]] == [
        *("embedded", "served", "commands", "signed", "extras")
    ]


def test_the_unit_the_container_and_compose_start_the_server_with_options_it_has() -> None:
    """The commands in them are parsed by the command line itself."""
    from cordwood.cli.operations.serve import serve

    unit = (ROOT / "ops/systemd/cordwood.service").read_text()
    container = (ROOT / "ops/container/Containerfile").read_text()
    compose = yaml.safe_load((ROOT / "ops/container/compose.yaml").read_text())
    entry, command = (
        ast.literal_eval(found)
        for found in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", container, re.MULTILINE)
    )
    started = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert started is not None
    config = str(ROOT / "ops/systemd/cordwood.service")
    for arguments in (
        started.group(1).replace("/etc/cordwood/server.properties", config).split()[2:],
        [*entry[2:], *command],
        [*entry[2:], *compose["services"]["cordwood"]["command"]],
    ):
        assert serve.make_context("serve", list(arguments)).params["data"] in {"/data", "/var/lib/cordwood"}
    assert compose["services"]["cordwood"]["read_only"] is True
    assert re.search(r"^USER 10001$", container, re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", container, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())


def test_every_pinned_package_has_hashes_and_make_requires_them() -> None:
    pinned = (ROOT / "requirements.lock").read_text()
    packages = re.split(r"^(?=\S)", pinned, flags=re.MULTILINE)[1:]
    assert len(packages) >= 50
    for package in packages:
        first, *hashes = package.replace("\\", "").split("--hash=sha256:")
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.+!-]+", first), first
        assert hashes, first
        assert all(re.fullmatch(r"[0-9a-f]{64}", each.strip()) for each in hashes), first
    assert "--require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()
