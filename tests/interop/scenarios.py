"""The six steps, and attempts that must fail, with each client by its short name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from interop import programs
from interop.kcat import Kcat, seen_by_kcat
from interop.logins import librdkafka_settings
from interop.report import Report
from interop.six_steps import SCENARIO_SECONDS_MAX, Broker, SixSteps, run_six_steps, running_program
from support.secure_clients import Login

PROGRAMS = {"java": programs.java, "kafkajs": programs.kafkajs, "franz-go": programs.franz_go}
CLIENTS = (*PROGRAMS, "kcat")


def about(client: str) -> tuple[str, str]:
    """Return the name and the version of a client.

    Raises:
        ToolMissing: If it is neither here nor can it be fetched.
    """
    if client == "kcat":
        return client, Kcat().version
    program = PROGRAMS[client]()
    return program.client, program.version


def run_scenario(
    client: str,
    broker: Broker,
    report: Report,
    directory: Path,
    access: tuple[str, Login] | None = None,
    name: str | None = None,
) -> None:
    """Go through the six steps, with topics named after *name*; see `SixSteps` for *access*."""
    if client == "kcat":
        kcat = Kcat({} if access is None else librdkafka_settings(access[1]))
        steps = SixSteps(name or client, broker, null_headers=False, exact=False, access=access)
        with closing(seen_by_kcat(kcat, steps)) as seen:
            run_six_steps(steps, lambda step: next(seen), report, client, kcat.version, lacks=["admin"])
        return
    program = PROGRAMS[client]()
    # kafkajs takes no null for the value of a header.
    steps = SixSteps(name or client, broker, null_headers=client != "kafkajs", access=access)
    with running_program(program.command, steps.plan(), directory) as hear:
        run_six_steps(steps, hear, report, program.client, program.version)


def refusal(
    client: str,
    steps: SixSteps,
    directory: Path,
    taken: str = "create",
    settings: Mapping[str, str] | None = None,
) -> str:
    """Have a client take a step that must fail, which is producing for kcat; return what it says of that.

    *settings* are more of the client's own: Java's or librdkafka's.
    """
    assert steps.access is not None
    if client == "kcat":
        kcat = Kcat({**librdkafka_settings(steps.access[1]), **(settings or {})})
        with kcat.start("-b", steps.address, "-t", steps.topic, "-P") as process:
            output, errors = process.communicate("record\n", SCENARIO_SECONDS_MAX)
        assert process.returncode, output
        return errors
    plan: dict[str, Any] = {**steps.plan([taken]), "retries": 0}
    plan["settings"] |= settings or {}
    (directory / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [*PROGRAMS[client]().command, str(directory / "plan.json")],
        capture_output=True,
        input="",
        text=True,
        timeout=SCENARIO_SECONDS_MAX,
    )
    assert done.returncode, done.stdout
    return done.stderr
