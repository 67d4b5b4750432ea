"""Every random test can be run again: its seed is known before the run, or printed by it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.nested import TESTS

#: Functions of the module `random`, and sources of entropy, whose result no seed decides.
UNSEEDED = {
    "random",
    "randrange",
    "randint",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "randbytes",
    "getrandbits",
}
#: The one place that may draw a seed.
SEEDS = TESTS / "support" / "seeds.py"


def unseeded_calls(source: str) -> list[int]:
    """Return the lines that draw from the shared generator of `random`, which nobody seeds."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr in UNSEEDED
    ]


def test_no_test_draws_what_no_seed_decides() -> None:
    files = [file for file in sorted(TESTS.rglob("*.py")) if file != SEEDS]
    found = {str(file.relative_to(TESTS)): unseeded_calls(file.read_text()) for file in files}
    print(f"{len(files)} files read")
    assert len(files) > 150
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_call_that_no_seed_decides_is_found() -> None:
    assert unseeded_calls("import random\nx = random.Random(3).randrange(4)\ny = random.randrange(4)") == [3]


def literal_seeds(source: str) -> list[int]:
    """Return the lines where a literal seeds what is drawn, so that `CORDWOOD_SEED` does not decide it.

    Bytes that only have to be incompressible may come from a literal: ``random.Random(3).randbytes(9)``.
    """
    tree = ast.parse(source)
    fillers = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "randbytes"
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "Random"
        and any(isinstance(each, ast.Constant) for each in node.args)
        and node not in fillers
    ]


def test_no_test_draws_what_the_seed_of_the_run_does_not_decide() -> None:
    files = [file for file in sorted(TESTS.rglob("*.py")) if file.name != "test_seeds.py"]
    found = {str(file.relative_to(TESTS)): literal_seeds(file.read_text()) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_literal_seed_is_found() -> None:
    assert literal_seeds("import random\na = random.Random(3)\nb = random.Random(3).randbytes(9)") == [2]
    assert literal_seeds("import random\nb = random.Random(3).choices([1], k=2)\nc = random.Random(n)") == [2]


def printed(seed: str | None) -> tuple[str, list[str]]:
    """Return the head of a run and what two random sweeps printed in it."""
    environment = {key: value for key, value in os.environ.items() if key != "CORDWOOD_SEED"}
    environment |= {} if seed is None else {"CORDWOOD_SEED": seed}
    sweeps = ["broker/groups/test_group.py", "storage/shared/test_virtual_topics.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-s", "-k"]
    chosen = "whatever_happens_in_whatever_order or keep_the_offsets_of_those_after"
    run = subprocess.run(
        [*command, chosen, *sweeps], cwd=TESTS, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    head = re.search(r"^seeds: .*$", run.stdout, re.MULTILINE)
    assert head is not None
    return head.group(), re.findall(r"seed \d+: .*", run.stdout)


def test_a_run_names_its_seed_and_the_same_seed_is_the_same_run() -> None:
    head, drawn = printed("random")
    seed = head.removeprefix("seeds: CORDWOOD_SEED=")
    print(f"seed {seed}")
    assert len(drawn) == 2
    assert all(line.startswith(f"seed {seed}:") for line in drawn)
    assert printed(seed) == (head, drawn)


def test_a_run_without_a_seed_has_the_usual_ones() -> None:
    head, drawn = printed(None)
    assert "the usual ones" in head
    assert [line.split(":")[0] for line in drawn] == ["seed 20260401", "seed 3"]


@pytest.mark.parametrize("text", ["three", "1.5", "0x"])
def test_a_seed_that_is_no_number_is_refused_in_one_sentence(text: str) -> None:
    code = "import support.seeds"
    environment = {**os.environ, "CORDWOOD_SEED": text, "PYTHONPATH": str(Path(TESTS))}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr == f"CORDWOOD_SEED must be a whole number or random, not {text!r}\n"
