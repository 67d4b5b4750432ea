"""The command line: what it prints, what it exits with, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.data_directory import Partition, flipped, put, write_sound_directory

from cordwood.cli import main
from cordwood.storage.files import read_file
from cordwood.storage.posix_files import PosixFiles

FILES = PosixFiles()


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"CORDWOOD_DATA_DIR": None, **environment})


@pytest.fixture
def orders(tmp_path: Path) -> Partition:
    return write_sound_directory(FILES, str(tmp_path))[0]


def damage(path: str) -> None:
    put(FILES, path, flipped(read_file(FILES, path), 8 * 30))


def test_version_and_help() -> None:
    assert run("--version").output.startswith("cordwood, version ")
    result = run("--help")
    assert result.exit_code == 0
    assert "verify" in result.output
    assert "4 corruption" in run("verify", "--help").output


def test_help_imports_no_command() -> None:
    """The overview must not pay for what only some commands need."""
    code = (
        "import sys, contextlib\n"
        "from cordwood.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "heavy = {'cordwood.cli.verify', 'rich', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_command_or_option_is_usage() -> None:
    assert run("no-such").exit_code == 2
    assert run("verify", "--no-such").exit_code == 2
    assert run("verify", "here", "--data", "there").exit_code == 2


@pytest.mark.usefixtures("orders")
def test_verify_of_a_sound_directory_exits_0_and_says_how_much_was_checked(tmp_path: Path) -> None:
    result = run("verify", str(tmp_path))
    assert result.exit_code == 0, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith(f"{tmp_path}: sound: 2 topics, 2 partitions, 7 segments, 28 frames, 52 records, ")
    assert "2 frames past the mark not judged; findings: 1 note" in last
    assert "torn tail" in result.output


@pytest.mark.usefixtures("orders")
def test_the_directory_comes_from_the_argument_the_option_the_environment_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("verify", str(tmp_path)).exit_code == 0
    assert run("verify", "--data", str(tmp_path)).exit_code == 0
    assert run("verify", CORDWOOD_DATA_DIR=str(tmp_path)).exit_code == 0
    monkeypatch.chdir(tmp_path)
    result = run("verify")
    assert result.exit_code == 1
    assert result.output == (
        "Error: data is not a data directory: it has neither meta/ nor topics/; "
        "give one as DIR, with --data or in CORDWOOD_DATA_DIR.\n"
    )
    tmp_path.joinpath("data").symlink_to(tmp_path)
    assert run("verify").exit_code == 0


def test_corruption_exits_4_with_file_and_position(tmp_path: Path, orders: Partition) -> None:
    path = orders.segment(str(tmp_path), 0, "log")
    damage(path)
    result = run("verify", str(tmp_path))
    assert result.exit_code == 4
    assert ": CORRUPT: " in result.output
    # Long paths may be folded, so whole ones are looked for in the JSON.
    report = json.loads(run("verify", str(tmp_path), "--json").output)
    assert not report["sound"]
    assert (report["findings"][0]["path"], report["findings"][0]["position"]) == (path, 17)
    assert report["findings"][0]["severity"] == "corruption"
    assert report["frames"] == 28


def test_a_damaged_index_alone_exits_3(tmp_path: Path, orders: Partition) -> None:
    damage(orders.segment(str(tmp_path), 0, "idx"))
    result = run("verify", str(tmp_path))
    assert result.exit_code == 3
    assert ": check failed: " in result.output
    assert "1 index, 1 note" in result.output


def test_one_topic_alone(tmp_path: Path, orders: Partition) -> None:
    damage(orders.segment(str(tmp_path), 0, "log"))
    assert run("verify", str(tmp_path), "-t", "payments").exit_code == 0
    assert run("verify", str(tmp_path), "-t", "orders").exit_code == 4
    result = run("verify", str(tmp_path), "-t", "no-such")
    assert result.exit_code == 1
    assert result.output == f"Error: {tmp_path} has no topic no-such\n"


def test_what_is_in_a_file_is_never_taken_for_markup(tmp_path: Path, orders: Partition) -> None:
    orders.changes = {"topic": "[bold]x[/nothing]"}
    orders.write_state(FILES, str(tmp_path))
    result = run("verify", str(tmp_path))
    assert result.exit_code == 4
    assert "[bold]x[/nothing]" in result.output
