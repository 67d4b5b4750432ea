"""Assignments of the server's assignors, compared with what Kafka's own classes make of the same groups."""

from __future__ import annotations

import subprocess

import pytest
from interop.kafka_jars import java_command
from interop.toolbox import HERE
from support.assignments import differences
from support.seeds import seed_or

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
SEED = seed_or(1)
GROUPS = 3_000


def test_assignments_of_random_groups_are_those_of_apache_kafka() -> None:
    command = java_command(HERE / "java" / "Assignors.java", [str(SEED), str(GROUPS)])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    compared, found = differences(done.stdout.splitlines())
    print(f"seed {SEED}: {compared} assignments")
    assert compared == 4 * GROUPS
    assert found == []
