"""ACLs, users and client quotas are kept as topics are: durable at once, and never missing for damage.

An entry that cannot be read must not count as "no rule": a lost DENY opens what it closed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from support.clocks import ManualClock
from support.crashes import CrashCount, crash_images
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import disk_of
from support.sweeps import bits_of

import cordwood
from cordwood.config import load_broker_config
from cordwood.disk import Files, PosixFiles, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import DiskFull, LogClosed, LogFailed, MetadataDamaged, QuotaExceeded, StorageError
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import (
    AclDeletedEntry,
    AclEntry,
    Catalogue,
    ClientQuotaEntry,
    DecoySeedEntry,
    ScramUserDeletedEntry,
    ScramUserEntry,
    SecurityEntry,
    shares,
)
from cordwood.verify import verify_directory

DATA = "/data"
LOG = join(DATA, "meta", "catalogue.log")
CONFIG = load_broker_config(environment={})[0]
ALLOW = AclEntry(0, 2, "orders", 3, "User:alice", "*", 3, 3)
DENY = AclEntry(7, 3, "billing-", 4, "User:*", "10.0.0.1", 2, 2)
KEY = base64.b64encode(b"k" * 32).decode()
ALICE = ScramUserEntry("alice", "SCRAM-SHA-256", 4096, base64.b64encode(b"salt").decode(), KEY, KEY)
LONG_KEY = base64.b64encode(b"k" * 64).decode()
ALICE_512 = ScramUserEntry("alice", "SCRAM-SHA-512", 8192, ALICE.salt, LONG_KEY, LONG_KEY)
SEED = DecoySeedEntry(KEY)
QUOTA = ClientQuotaEntry(0, {"user": "alice", "client-id": None}, {"producer_byte_rate": 1024.0})
ALL: tuple[SecurityEntry, ...] = (ALLOW, DENY, ALICE, ALICE_512, QUOTA)
#: Everything that is known about security, to compare.
State = tuple[list[AclEntry], list[AclEntry], list[ScramUserEntry], list[ClientQuotaEntry]]


def open_data(files: Files, path: str = DATA) -> DataDirectory:
    clock = ManualClock()
    return DataDirectory(
        Opening(files, path, CONFIG, mapped=False, clock=clock, holder="a test", uuid="u-1", node_name="here")
    )


def state_of(data: DataDirectory) -> State:
    kept = data.security
    return kept.acls(0), kept.acls(7), kept.scram_users(), kept.client_quotas(0)


def gone(acl: AclEntry) -> AclDeletedEntry:
    return AclDeletedEntry(**msgspec.structs.asdict(acl))


FULL: State = ([ALLOW], [DENY], [ALICE, ALICE_512], [QUOTA])
EMPTY: State = ([], [], [], [])


# --- changes --------------------------------------------------------------------------------------


def test_what_was_changed_is_there_after_a_crash() -> None:
    files = MemoryFiles()
    data = open_data(files)
    assert data.security.change(ALL) == [True] * 5
    assert state_of(data) == FULL
    assert state_of(open_data(disk_of(image(files, DATA)))) == FULL


def test_the_secret_of_users_that_do_not_exist_is_there_after_a_crash_and_shown_nowhere() -> None:
    files = MemoryFiles()
    data = open_data(files)
    assert data.security.decoy_seed() is None
    assert data.security.change([SEED]) == [True]
    assert data.security.change([SEED]) == [False]
    assert open_data(disk_of(image(files, DATA))).security.decoy_seed() == b"k" * 32
    assert verify_directory(files, DATA).sound
    assert KEY not in repr(SEED)


def test_what_was_removed_is_gone_and_can_come_again() -> None:
    files = MemoryFiles()
    data = open_data(files)
    data.security.change(ALL)
    removals: list[SecurityEntry] = [
        gone(ALLOW),
        gone(DENY),
        ScramUserDeletedEntry("alice", "SCRAM-SHA-256"),
        ScramUserDeletedEntry("alice", "SCRAM-SHA-512"),
        ClientQuotaEntry(0, QUOTA.entity, {}),
    ]
    assert data.security.change(removals) == [True] * 5
    assert state_of(data) == EMPTY
    assert data.security.change(removals) == [False] * 5
    data = open_data(disk_of(image(files, DATA)))
    assert state_of(data) == EMPTY
    data.security.change(ALL)
    assert state_of(data) == FULL


def test_users_and_quotas_replace_earlier_ones_and_acls_add_up() -> None:
    data = open_data(MemoryFiles())
    data.security.change(ALL)
    weaker = msgspec.structs.replace(ALICE, iterations=5000)
    higher = ClientQuotaEntry(0, dict(reversed(QUOTA.entity.items())), {"consumer_byte_rate": 5.0})
    other = msgspec.structs.replace(ALLOW, permission=2)
    assert data.security.change([weaker, higher, other]) == [True] * 3
    assert state_of(data) == ([ALLOW, other], [DENY], [weaker, ALICE_512], [higher])


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    files = MemoryFiles()
    data = open_data(files)
    data.security.change(ALL)
    before = read_file(files, LOG)
    assert data.security.change([*ALL, gone(msgspec.structs.replace(ALLOW, org=3))]) == [False] * 6
    assert read_file(files, LOG) == before
    assert data.security.change([ALLOW, gone(ALLOW), ALLOW]) == [False, True, True]
    assert data.security.acls(0) == [ALLOW]


def test_a_closed_directory_takes_no_rules_and_tells_none() -> None:
    data = open_data(MemoryFiles())
    data.close()
    for call in (lambda: data.security.change([ALLOW]), lambda: data.security.acls(0)):
        with pytest.raises(LogClosed):
            call()


def one_more(kind: str, org: int, number: int) -> SecurityEntry:
    if kind == "ACLs":
        return msgspec.structs.replace(ALLOW, org=org, resource_name=f"t-{number}")
    if kind == "users":
        return msgspec.structs.replace(ALICE, name=f"u-{number}")
    return ClientQuotaEntry(org, {"user": f"u-{number}"}, {"request_percentage": 1.0})


@pytest.mark.parametrize("kind", ["ACLs", "users", "client quotas"])
def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """All of them are in memory. What is there can be replaced and removed, whatever the limit is."""
    monkeypatch.setattr(shares, "ENTRIES_MAX", 2)
    data = open_data(MemoryFiles())
    with pytest.raises(QuotaExceeded, match=f"org 0 has at most 2 {kind}"):
        data.security.change([one_more(kind, 0, number) for number in range(3)])
    assert state_of(data) == EMPTY
    data.security.change([one_more(kind, 0, 0), one_more(kind, 0, 1)])
    with pytest.raises(QuotaExceeded):
        data.security.change([one_more(kind, 0, 2)])
    monkeypatch.setattr(shares, "ENTRIES_MAX", 1)
    if kind == "ACLs":
        assert data.security.change([gone(one_more(kind, 0, 0))]) == [True]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["ACLs", "client quotas", "settings of groups"])
def test_no_tenant_uses_up_what_others_may_have(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Each org but 0 has a share, and all of them together leave that of org 0 untouched."""
    monkeypatch.setattr(shares, "ENTRIES_MAX", 5)
    monkeypatch.setattr(shares, "TENANT_ENTRIES_MAX", 2)
    data = open_data(MemoryFiles())

    def add(org: int, number: int) -> None:
        if kind == "settings of groups":
            data.settings.alter_group(org, f"g-{number}", {"consumer.session.timeout.ms": "50000"})
        else:
            data.security.change([one_more(kind, org, number)])

    for org in (7, 8):
        add(org, 0)
        add(org, 1)
        with pytest.raises(QuotaExceeded, match=f"org {org} has at most 2 "):
            add(org, 2)
    add(9, 0)
    with pytest.raises(QuotaExceeded, match="all orgs but 0 have at most 5 "):
        add(9, 1)
    for number in range(5):
        add(0, number)
    with pytest.raises(QuotaExceeded, match="org 0 has at most 5 "):
        add(0, 5)


def test_a_full_disk_changes_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    data = open_data(files)
    data.security.change([ALLOW])
    before = state_of(data)
    files.plan(FaultPlan(1, frozenset({"write"}), errno.ENOSPC))
    with pytest.raises(DiskFull):
        data.security.change([DENY, ALICE])
    files.heal()
    assert state_of(data) == before
    assert state_of(open_data(disk_of(image(files.inner, DATA)))) == before
    data.security.change([DENY, ALICE])
    assert data.security.acls(7) == [DENY]


def test_a_rule_whose_sync_failed_is_not_acknowledged() -> None:
    files = FaultyFiles(MemoryFiles())
    data = open_data(files)
    files.plan(FaultPlan(1, frozenset({"sync"}), errno.EIO))
    with pytest.raises(LogFailed):
        data.security.change([DENY])
    with pytest.raises(StorageError):
        data.security.change([ALLOW])


def test_no_power_cut_loses_a_rule_or_brings_one_back() -> None:
    """After each cut the state is one that was there: at least what was acknowledged."""
    recording = RecordingFiles(MemoryFiles())
    data = open_data(recording)
    states = [EMPTY]
    changes: list[list[SecurityEntry]] = [
        [ALLOW],
        [DENY],
        [ALICE, ALICE_512],
        [QUOTA],
        [gone(ALLOW)],
        [ALLOW],
    ]
    changes += [[ScramUserDeletedEntry("alice", "SCRAM-SHA-512")], [ClientQuotaEntry(0, QUOTA.entity, {})]]
    recording.acknowledge(0)
    for change in changes:
        for _ in change:
            # A cut may keep the first entries of a change that was not acknowledged.
            expected = open_data(MemoryFiles())
            expected.security.change([each for one in changes for each in one][: len(states)])
            states.append(state_of(expected))
        data.security.change(change)
        recording.acknowledge(len(states) - 1)
    count = CrashCount()
    for cut in crash_images(recording, limit_per_prefix=10, count=count):
        if not cut.acknowledged:
            continue
        found = state_of(open_data(cut.files))
        least = max(number for number in cut.acknowledged if isinstance(number, int))
        assert found in states[least : least + 3], f"cut after {cut.prefix} operations, {cut.kind}"
    print(f"{count.images} disks")
    count.require(150)


# --- damage ---------------------------------------------------------------------------------------


def test_a_flipped_bit_never_takes_a_rule_away() -> None:
    """Whichever bit it is: the directory does not open, or all rules are there."""
    files = MemoryFiles()
    data = open_data(files)
    data.security.change(ALL)
    data.close()
    left = image(files, DATA)
    written = left[LOG]
    assert written is not None
    refused = 0
    bits = bits_of(written, 7)
    for bit in bits:
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            opened = open_data(disk_of(left, {LOG: bytes(changed)}))
        except MetadataDamaged:
            refused += 1
        else:
            assert state_of(opened) == FULL, f"bit {bit}"
    print(f"{len(bits)} bits, {refused} refused")
    assert refused == len(bits) > 1000


@pytest.mark.parametrize("keep_mark", [True, False], ids=["marked", "past the mark"])
def test_a_torn_rule_is_there_whole_or_not_at_all(keep_mark: bool) -> None:
    """Below the mark it was acknowledged, so then the directory is refused."""
    files = MemoryFiles()
    data = open_data(files)
    data.security.change([ALLOW, ALICE])
    before = image(files, DATA)
    data.security.change([DENY])
    after = image(files, DATA)
    old, new = before[LOG], after[LOG]
    assert old is not None
    assert new is not None
    outcomes = set()
    for end in range(len(old), len(new) + 1):
        base = after if keep_mark else before
        try:
            found = open_data(disk_of(base, {LOG: new[:end]})).security.acls(7)
        except MetadataDamaged:
            assert keep_mark
            outcomes.add("refused")
        else:
            assert found == ([DENY] if end == len(new) else [])
            outcomes.add(f"{len(found)} rules")
    assert outcomes == ({"refused", "1 rules"} if keep_mark else {"0 rules", "1 rules"})


def write_raw(data: Path, body: dict[str, Any]) -> None:
    """Add an entry with a correct checksum, whatever it says, and close the directory as it was."""
    encoded = msgspec.json.encode(body)
    with contextlib.closing(Catalogue.open(PosixFiles(), str(data))) as catalogue:
        assert catalogue.contents is not None
    with (data / "meta" / "catalogue.log").open("ab") as file:
        file.write(struct.pack(">II", len(encoded), google_crc32c.value(encoded)) + encoded)


def fields(entry: SecurityEntry, **changed: object) -> dict[str, Any]:
    body = msgspec.json.decode(msgspec.json.encode(entry))
    body.update(changed)
    return {name: value for name, value in body.items() if value is not ...}


IMPOSSIBLE = {
    "a kind of a later version": {"kind": "acl-condition", "org": 0},
    "an ACL with a field of a later version": fields(ALLOW, until="2030-01-01"),
    "an ACL without its principal": fields(ALLOW, principal=...),
    "an ACL for nobody": fields(ALLOW, principal="alice"),
    "an ACL for a nameless user": fields(DENY, principal="User:"),
    "an ACL at no host": fields(DENY, host=""),
    "an ACL on nothing": fields(DENY, resource_name=""),
    "an ACL with a very long name": fields(DENY, resource_name="x" * 1001),
    "an unknown type of resource": fields(DENY, resource_type=8),
    "any type of resource": fields(DENY, resource_type=1),
    "a filter's type of pattern": fields(DENY, pattern_type=2),
    "an unknown operation": fields(DENY, operation=16),
    "any operation": fields(DENY, operation=1),
    "an unknown permission": fields(DENY, permission=4),
    "an org that is none": fields(DENY, org=-1),
    "an org of too many digits": fields(DENY, org=1 << 64),
    "a deleted ACL with an unknown field": fields(gone(DENY), only_if="x"),
    "a user of an unknown mechanism": fields(ALICE, mechanism="SCRAM-MD5"),
    "a user without a name": fields(ALICE, name=""),
    "a user with a short key": fields(ALICE, stored_key=ALICE.salt),
    "a user with a key of the other mechanism": fields(ALICE, server_key=LONG_KEY),
    "a user with a key that is no base64": fields(ALICE, server_key="*" * 44),
    "a user without iterations": fields(ALICE, iterations=0),
    "a user with an unknown field": fields(ALICE, expires="never"),
    "a deleted user of no mechanism": {"kind": "scram-user-deleted", "name": "alice", "mechanism": ""},
    "a seed that is short": fields(SEED, seed=ALICE.salt),
    "a seed that is no base64": fields(SEED, seed="*" * 44),
    "a quota of nobody": fields(QUOTA, entity={}),
    "a quota of an unknown entity": fields(QUOTA, entity={"group": "g"}),
    "a quota of an address and a user": fields(QUOTA, entity={"ip": "10.0.0.1", "user": "u"}),
    "a quota of a negative rate": fields(QUOTA, limits={"producer_byte_rate": -1}),
    "a quota of no rate at all": fields(QUOTA, limits={"producer_byte_rate": 0}),
    "a quota of an unknown kind": fields(QUOTA, limits={"bytes": 1}),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_an_entry_that_is_not_understood_keeps_everyone_out(tmp_path: Path, what: str) -> None:
    """As an earlier version does with entries of this one: what it does not know may be a DENY."""
    data = tmp_path / "data"
    cordwood.open(data).close()
    write_raw(data, IMPOSSIBLE[what])
    for way in (
        lambda: cordwood.open(data),
        lambda: cordwood.open(data, read_only=True).topics,
        lambda: cordwood.backup(data, tmp_path / "copy"),
        lambda: cordwood.restore(data, tmp_path / "restored"),
    ):
        with pytest.raises(MetadataDamaged) as refused:
            way()
        assert "catalogue.log" in str(refused.value)
        assert KEY[:8] not in str(refused.value)
    findings = verify_directory(PosixFiles(), str(data)).findings
    severities = [each.severity for each in findings if each.path.endswith("catalogue.log")]
    assert severities == ["note" if "a kind of a later" in what else "corruption"]
    assert KEY[:8] not in str(findings)


@pytest.mark.parametrize(
    "what", [each for each in IMPOSSIBLE if "field" not in each and "kind of" not in each]
)
def test_an_entry_that_nobody_could_read_is_never_written(what: str) -> None:
    body = IMPOSSIBLE[what]
    kinds: dict[str, Any] = {
        "acl": AclEntry,
        "scram-user": ScramUserEntry,
        "decoy-seed": DecoySeedEntry,
        "scram-user-deleted": ScramUserDeletedEntry,
        "client-quota": ClientQuotaEntry,
    }
    given = {name: value for name, value in body.items() if name != "kind"}
    if body["kind"] == "acl":
        given = {"principal": "", **given}
    data = open_data(MemoryFiles())
    with pytest.raises(ValueError, match=f"an entry of kind {body['kind']}") as refused:
        data.security.change([ALLOW, kinds[body["kind"]](**given)])
    assert KEY[:8] not in str(refused.value)
    assert state_of(data) == EMPTY


def test_keys_of_users_are_not_shown_by_accident() -> None:
    assert KEY not in repr(ALICE)
    assert ALICE.salt not in f"{[ALICE]}"


# --- copies ---------------------------------------------------------------------------------------


def copies(data: Path, tmp_path: Path) -> Sequence[Path]:
    cordwood.backup(data, tmp_path / "backup")
    cordwood.restore(tmp_path / "backup", tmp_path / "restored")
    return tmp_path / "backup", tmp_path / "restored"


def test_backup_and_restore_keep_rules_users_and_quotas(tmp_path: Path) -> None:
    """Also when the backup is brought up to date, and what was removed since is gone from it."""
    made = open_data(PosixFiles(), str(tmp_path / "data"))
    made.security.change(ALL)
    made.close()
    for place in copies(tmp_path / "data", tmp_path):
        assert verify_directory(PosixFiles(), str(place)).sound
    restored = open_data(PosixFiles(), str(tmp_path / "restored"))
    assert state_of(restored) == FULL
    restored.close()
    changed = open_data(PosixFiles(), str(tmp_path / "data"))
    changed.security.change([gone(ALLOW), ScramUserDeletedEntry("alice", "SCRAM-SHA-256")])
    changed.close()
    cordwood.backup(tmp_path / "data", tmp_path / "backup")
    cordwood.restore(tmp_path / "backup", tmp_path / "again")
    again = open_data(PosixFiles(), str(tmp_path / "again"))
    assert state_of(again) == ([], [DENY], [ALICE_512], [QUOTA])
    again.close()


def test_the_catalogue_with_the_keys_is_for_its_owner_only(tmp_path: Path) -> None:
    made = open_data(PosixFiles(), str(tmp_path / "data"))
    made.security.change([ALICE])
    made.close()
    for place in (tmp_path / "data", *copies(tmp_path / "data", tmp_path)):
        for path, wanted in ((place / "meta" / "catalogue.log", 0o600), (place / "meta", 0o700)):
            assert path.stat().st_mode & 0o777 == wanted, path
