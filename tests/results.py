"""Run the sweeps and write what they counted into docs/results.md: `make results`.

``python tests/results.py WORD`` runs the rows whose tests have WORD in their names; others stay as they are.
Each row of the page is one `Sweep` below: which tests run, and which numbers of their output are added up.
Seeds and limits come from the environment, as in any run of the tests.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
BEGIN, END = "<!-- sweeps: begin -->", "<!-- sweeps: end -->"
NUMBER = r"([\d,]+)"
DISKS = rf"images checked\s+{NUMBER}"
CAUGHT = r"caught[^:]*:()"


@dataclass(frozen=True)
class Sweep:
    """One row: *claim* is what was tried, *tests* are files or tests, *counted* finds numbers to add up.

    A pattern whose group is empty counts its matches.
    """

    claim: str
    tests: Sequence[str]
    counted: str
    unit: str


def _crash(file: str, test: str) -> str:
    return f"tests/crash/test_{file}.py::test_{test}"


_CANCELLING = "tests/aio/test_aio_cancelling.py::test_"

SWEEPS = (
    Sweep(
        "A power cut at any operation loses nothing that was acknowledged",
        [_crash("crash_engine", "no_power_cut_loses_what_was_acknowledged")],
        DISKS,
        "disks",
    ),
    Sweep(
        "A second power cut, during recovery, loses nothing either",
        [_crash("crash_engine", "no_power_cut_during_recovery_loses_anything_either")],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut stores no batch of an idempotent producer twice",
        [_crash("crash_engine", "no_power_cut_stores_a_batch_twice_or_loses_one")],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut brings no deleted topic back",
        [_crash("crash_engine", "no_power_cut_brings_a_deleted_topic_back_or_harms_its_successor")],
        DISKS,
        "disks",
    ),
    Sweep(
        "The same for the other four record formats, recovery cut again included",
        [
            _crash("crash_formats", "no_power_cut_loses_what_was_acknowledged_in_any_format"),
            _crash("crash_formats", "no_power_cut_during_the_recovery_of_any_format_loses_anything_either"),
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut during retention or compaction leaves the old or the new set of segments",
        [
            _crash("crash_maintenance", "no_power_cut_leaves_a_mix_of_old_and_new_segments"),
            _crash("crash_maintenance", "no_power_cut_while_a_swap_is_finished_does_either"),
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut of the shared log loses or mixes up nothing of three tenants",
        [
            _crash("crash_shared", "no_power_cut_loses_or_mixes_up_what_tenants_were_promised"),
            _crash("crash_shared", "no_power_cut_after_another_does_either"),
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut publishes no part of a batch of Spark's sink, none twice, and loses none",
        [
            _crash(
                "crash_sink",
                "no_power_cut_publishes_a_part_of_a_batch_or_one_twice_or_loses_a_promised_one",
            ),
            _crash("crash_sink", "no_power_cut_while_a_batch_is_rolled_forward_does_either"),
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut leaves all of a transaction or nothing, in the library, on a server and in a compaction",
        [
            _crash("crash_transactions", "no_power_cut_shows_what_was_not_committed_or_loses_what_was"),
            _crash("crash_transactions", "no_power_cut_after_another_does_either"),
            _crash("crash_transactions_library", "every_power_cut_leaves_all_of_a_transaction_or_nothing"),
            _crash(
                "crash_transactions_server",
                "no_power_cut_of_a_server_tears_a_transaction_apart_or_loses_its_answer",
            ),
            _crash("crash_compacted_transactions", "no_power_cut_of_compaction_changes_what_is_committed"),
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A call of the library for asyncio is cancelled at every await, also on a disk that fails",
        [
            f"{_CANCELLING}wherever_a_step_is_cancelled_the_log_goes_on_whole",
            f"{_CANCELLING}a_cancelled_step_on_a_disk_that_fails_loses_nothing_acknowledged",
        ],
        rf"(?:at|:) {NUMBER} (?:of|cases)",
        "cancelled calls",
    ),
    Sweep(
        "A power cut after a cancelled call of the library for asyncio loses nothing that was acknowledged",
        [f"{_CANCELLING}no_power_cut_after_a_cancelled_step_loses_an_acknowledged_record"],
        DISKS,
        "disks",
    ),
    Sweep(
        "Bugs planted in the library for asyncio are caught by these cancellations and power cuts",
        [f"{_CANCELLING}a_planted_bug_of_the_library_for_asyncio_is_caught"],
        CAUGHT,
        "planted bugs, all caught",
    ),
    Sweep(
        "A power cut leaves an append to several segments, or a stream, as a whole or as what was promised "
        "of it",
        [
            "tests/storage/log/test_spreading.py::"
            "test_no_power_cut_in_such_an_append_loses_a_promised_record_or_leaves_more_than_a_prefix",
            "tests/embedded/test_streams.py::"
            "test_no_power_cut_loses_an_acknowledged_stream_or_shows_half_of_one",
        ],
        rf"(?:images checked\s+|, ){NUMBER}(?: disks|\n|$)",
        "disks",
    ),
    Sweep(
        "A power cut during a backup or a restore leaves all of it, nothing, or what the next one finishes",
        [
            "tests/storage/backup/test_backup.py::"
            "test_a_power_cut_leaves_each_partition_as_it_was_as_it_is_now_or_between",
            "tests/storage/backup/test_restore.py::"
            "test_a_power_cut_leaves_all_of_it_or_nothing_and_the_next_restore_works",
        ],
        rf"{NUMBER} disks",
        "disks",
    ),
    Sweep(
        "A power cut while indexes are rebuilt leaves what the next run finishes",
        [
            "tests/storage/offline/test_reindex.py::"
            "test_whatever_a_power_cut_leaves_the_next_run_finishes_and_nothing_stays_behind"
        ],
        DISKS,
        "disks",
    ),
    Sweep(
        "A power cut of a mirror loses nothing that was synced, and the next run doubles nothing",
        [
            "tests/mirror/test_mirrors.py::"
            "test_a_power_cut_at_any_step_loses_nothing_that_was_synced_and_doubles_nothing"
        ],
        rf"{NUMBER} power cuts",
        "power cuts",
    ),
    Sweep(
        "Bugs planted in the engine are caught by these power cuts",
        [
            "tests/crash/test_canaries.py",
            _crash("crash_formats", "a_bug_planted_in_what_formats_need_is_caught"),
            _crash("crash_maintenance", "a_planted_bug_of_upkeep_is_caught"),
            _crash("crash_shared", "a_planted_bug_of_the_shared_log_is_caught"),
            _crash("crash_sink", "a_planted_bug_of_the_sink_is_caught"),
            _crash("crash_transactions", "a_planted_bug_is_caught"),
            _crash("crash_transactions_server", "a_planted_bug_of_a_server_is_caught"),
        ],
        CAUGHT,
        "planted bugs, all caught",
    ),
    Sweep(
        "Every call to the disk fails, once or for ever, and nothing acknowledged is lost",
        ["tests/storage/log/test_failing_io.py"],
        rf"{NUMBER} (?:cases|failed syncs|times no space)",
        "failures",
    ),
    Sweep(
        "Flipped bits, cuts, swaps and stale files: the original is read, or a refusal names the place",
        ["tests/storage/log/test_rot.py"],
        rf"{NUMBER} cases",
        "damaged directories",
    ),
    Sweep(
        "A torn tail of any length is cut, and nothing else",
        ["tests/storage/log/test_torn_tail.py"],
        rf"{NUMBER} tails",
        "tails",
    ),
    Sweep(
        "Flipped bits of a log with its chain are found by verify",
        [
            "tests/storage/chain/test_tampering.py::"
            "test_every_flipped_bit_of_a_segment_and_of_each_file_beside_it_is_found"
        ],
        rf": {NUMBER}[,}}]",
        "flipped bits",
    ),
    Sweep(
        "Flipped bits and cuts of the other four record formats are found by verify",
        [
            "tests/verify/test_verify_formats.py::"
            "test_every_flipped_bit_and_every_cut_of_a_log_and_of_the_file_beside_it_is_found",
            "tests/verify/test_verify_formats.py::"
            "test_every_flipped_bit_and_every_cut_of_what_compaction_left_is_found",
        ],
        rf": {NUMBER}[,}}]",
        "flips and cuts",
    ),
    Sweep(
        "Random histories of an operator do not look like tampering; a contradicted checkpoint always does",
        ["tests/storage/chain/test_honest_histories.py"],
        rf"{NUMBER} histories",
        "histories",
    ),
    Sweep(
        "Random idempotent producers, kills and damaged snapshots: nothing stored twice, nothing lost",
        ["tests/storage/log/test_producers_model.py"],
        rf"'[a-z ]+': {NUMBER}",
        "random steps",
    ),
    Sweep(
        "Random consumer groups in virtual time: no partition has two owners in a generation",
        [
            "tests/broker/groups/test_group_simulation.py::"
            "test_no_generation_has_two_owners_of_a_partition_and_every_group_comes_to_rest"
        ],
        rf"{NUMBER} runs",
        "simulated runs",
    ),
    Sweep(
        "Random groups of the consumer, the classic and both protocols in virtual time: no partition has two "
        "owners in an epoch, every group comes to rest, and no committed offset is lost",
        [
            "tests/broker/groups/consumer/test_consumer_simulation.py::test_no_partition_has_two_owners_and_each_has_one_in_the_end"
        ],
        rf"{NUMBER} runs",
        "simulated runs",
    ),
    Sweep(
        "Random transactions in virtual time, with power cuts: none is half committed, none stays open, "
        "and both views of the log are those of a list",
        ["tests/broker/transactions/test_transaction_simulation.py"],
        rf"{NUMBER} runs",
        "simulated runs",
    ),
    Sweep(
        "Random tenants of the shared log each have a list of their own",
        ["tests/storage/shared/test_shared_log.py::test_each_tenant_has_a_list_of_its_own_whatever_happens"],
        rf"'[a-z ]+': {NUMBER}",
        "random steps",
    ),
    Sweep(
        "Random tenants of one server with the same names for everything never meet, over restarts",
        ["tests/server/test_tenant_histories.py::test_tenants_with_the_same_names_never_meet"],
        rf"{NUMBER} operations",
        "operations",
    ),
    Sweep(
        "The checker of histories finds no fault in random sound histories, and each planted fault by its "
        "name",
        [
            "tests/test_history_checker.py::test_random_histories_without_a_fault_are_sound",
            "tests/test_history_checker.py::test_a_fault_planted_in_a_random_history_is_found_by_its_name",
        ],
        rf": {NUMBER} histories",
        "histories",
    ),
    Sweep(
        "Mutated requests and responses give a message or a protocol error, in bounded memory",
        ["tests/protocol/test_protocol_fuzz.py"],
        rf"{NUMBER} mutated frames",
        "mutated frames",
    ),
    Sweep(
        "Hostile frames on the socket give an answer, an error or a closed connection",
        ["tests/server/test_hostile.py"],
        rf"{NUMBER} hostile frames",
        "hostile frames",
    ),
    Sweep(
        "kill -9 of a server under idempotent producers loses and doubles no acknowledged record",
        ["tests/server/test_kill.py"],
        rf"{NUMBER} kills",
        "kills",
    ),
    Sweep(
        "kill -9 of a server under transactional clients tears no transaction apart and loses none",
        ["tests/server/test_transactions_kill.py"],
        rf"{NUMBER} kills",
        "kills",
    ),
)


class Counted:
    """A plugin that keeps what passed tests print."""

    def __init__(self) -> None:
        self.printed: dict[str, str] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a passed test printed, and the name of one that failed."""
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when == "call" and report.passed:
            self.printed[report.nodeid] = report.capstdout


def row_of(sweep: Sweep, printed: Mapping[str, str]) -> str:
    """Return the row of *sweep*: what was tried, how many cases, which seeds, and the tests."""
    texts = [text for node, text in printed.items() if node.startswith(tuple(sweep.tests))]
    found = [number for text in texts for number in re.findall(sweep.counted, text)]
    cases = sum(int(number.replace(",", "")) if number else 1 for number in found)
    if not cases:
        raise SystemExit(f"no cases were counted: {sweep.claim}")
    seeds = sorted(
        int(seed)
        for text in texts
        for pair in re.findall(r"\bseeds? (\d+)(?: to (\d+))?", text)
        for seed in pair
        if seed
    )
    shown = (
        "none needed"
        if not seeds
        else str(seeds[0])
        if seeds[0] == seeds[-1]
        else f"{seeds[0]} to {seeds[-1]}"
    )
    tests = "<br>".join(f"`{test}`" for test in sweep.tests)
    unit = sweep.unit if cases > 1 else sweep.unit.removesuffix("s")
    return f"| {sweep.claim} | {cases:,} {unit} | {shown} | {tests} |"


def table_of(printed: Mapping[str, str], run: Sequence[Sweep], page: str) -> str:
    """Return the table of all sweeps; rows that were not *run* are as in *page*, if it has them."""
    head = "| What was tried | Cases | Seeds | Tests |\n|---|---|---|---|\n"
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if "| " in line}
    rows = [row_of(sweep, printed) if sweep in run else kept.get(sweep.claim, "") for sweep in SWEEPS]
    return head + "\n".join(filter(None, rows))


def main(words: Sequence[str] = ()) -> int:
    """Run every sweep, or those whose tests have one of *words* in their names; replace their rows."""
    counted, by_file = Counted(), defaultdict(list)
    run = [each for each in SWEEPS if not words or any(word in " ".join(each.tests) for word in words)]
    for sweep in run:
        for test in sweep.tests:
            by_file[test.partition("::")[0]].append(test)
    chosen = [test for tests in by_file.values() for test in dict.fromkeys(tests)]
    status = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *chosen], plugins=[counted])
    return write(counted, status, run)


def write(counted: Counted, status: int, run: Sequence[Sweep] = SWEEPS) -> int:
    """Replace the table of the page, if the run ended well; return the status to exit with."""
    if status or counted.failed:
        print(f"docs/results.md is unchanged, because these failed: {', '.join(counted.failed)}")
        return 1
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(counted.printed, run, table)}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
