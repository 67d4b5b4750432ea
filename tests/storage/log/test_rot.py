"""Rot: any bit, any length, any file gone. What is read is the original, or a refusal that names the place.

`CORDWOOD_SWEEP_FULL=1` flips every bit of every file and cuts it at every length; without it, some bits of
every byte of the metadata (of the padding of marks some bytes), of one sealed and of one active segment with
its indexes, and fewer of the others. Of a cleanly closed directory every file is cut at every third length,
of others at every ninth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from support.disks import image
from support.logs import (
    DATA,
    HANGS,
    SMALL,
    Contents,
    Damage,
    Image,
    Problems,
    contents_of,
    disk_of,
    frames_of,
    look,
    open_log,
    partition_path,
    segment_file,
    use,
)
from support.producing import Sent, send, snapshots_every
from support.sweeps import BIT_STEP, FULL, bits_of, every

from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, CorruptRange

VARIANTS = ("closed", "killed")
#: Files that decide nothing that cannot be found again: whatever happens to them, everything is served.
DERIVED = (".idx", ".timeidx", "checkpoint.json", "clean", "lock", "mark", "producers.json")
META = ("broker.id", "catalogue.log", "catalogue.mark", "checkpoint.json", "clean", "lock")


#: What producers sent to payments, and where it is; the snapshot covers all but the last of it.
PAID = [(Sent(1 + i % 2, 0, 2 * (i // 2), (b"paid %d" % i, b"twice")), 2 + 2 * i) for i in range(6)]


@dataclass(frozen=True)
class Directory:
    """A data directory as it lies on disk, what it holds, and images from earlier in its life."""

    image: Image
    contents: Contents
    earlier: tuple[Image, ...] = ()

    def files(self) -> dict[str, bytes]:
        return {path: data for path, data in self.image.items() if data is not None}

    def data(self, path: str) -> bytes:
        data = self.image[path]
        assert data is not None
        return data


@cache
def lived_in(variant: str) -> Directory:
    """Two topics, three partitions, sealed segments, a cut inside a frame and a log start that moved."""
    files = MemoryFiles()
    log = open_log(files)
    orders = log.topic("orders", 2, SMALL)
    payments = log.topic("payments", 1, SMALL)
    earlier = []
    for i in range(9):
        orders.append(b"order-%02d" % i, partition=0)
    # A time that runs ahead, then ordinary ones: the time index has fewer entries than frames.
    orders.append(b"ahead", partition=0, timestamp=1_700_000_000_900)
    orders.append(b"order-10", partition=0)
    orders.append_many([(b"k", b"three"), (None, b"in one"), (b"k", None)], partition=0)
    earlier.append(image(files, DATA))
    orders.append(b"order-14", partition=0)
    earlier.append(image(files, DATA))
    orders.truncate(0, 12)
    for i in range(12, 22):
        orders.append(b"again-%02d" % i, partition=0)
    earlier.append(image(files, DATA))
    orders.advance_log_start(0, 7)
    orders.append(b"order-22", partition=0)
    orders.append(b"other", partition=1)
    payments.append(b"paid", key=b"k", headers=[("h", b"1")])
    payments.append(b"paid again")
    with snapshots_every(250):
        for sent, base in PAID:
            log_of_payments = log.data_directory.partitions.own("payments", 0)
            assert send(log_of_payments, sent)[0] == base
            log_of_payments.commit()
    if variant == "closed":
        assert log.maintain().segments_hashed >= 3
        log.close()
        return Directory(image(files, DATA), contents_of(files), tuple(earlier))
    left = image(files, DATA)
    log.close()
    return Directory(left, contents_of(disk_of(left)), tuple(earlier))


@cache
def small(variant: str) -> Directory:
    """Two topics with a record each: what a bit of `meta/` decides is decided here too, and quicker."""
    files = MemoryFiles()
    log = open_log(files)
    log.topic("a").append(b"1")
    log.topic("b").append(b"2")
    left = image(files, DATA)
    log.close()
    left = image(files, DATA) if variant == "closed" else left
    return Directory(left, contents_of(disk_of(left)))


def damage_to(*paths: str) -> Damage:
    return Damage(paths, derived=all(path.endswith(DERIVED) for path in paths))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def sweep_bits(
    directory: Directory, path: str, *, step: int, read_only: bool = False, problems: Problems
) -> None:
    """Flip every *step*-th bit of one file; every one of a full run."""
    data, damage = directory.data(path), damage_to(path)
    if read_only:
        damage.derived = damage.derived and not path.endswith("mark")
    for bit in bits_of(data, step):
        changed = flipped(data, bit)
        if path.endswith("mark") and bit % 4096 >= 68 * 8 and not FULL:
            # The zeros after a slot are told apart by nobody: all bits of some bytes will do.
            if bit % 8 >= step or bit // 8 % 5:
                continue
            changed = data[: bit // 8] + b"\xff" + data[bit // 8 + 1 :]
        files = disk_of(directory.image, {path: changed})
        found = look(files, directory.contents, damage, read_only=read_only)
        problems.add(f"{path} bit {bit}", found)


def report(what: str, problems: Problems, *, at_least: int) -> None:
    print(f"{what}: {problems.cases} cases, {sum(problems.counts.values())} problems")
    assert problems.cases >= at_least, f"only {problems.cases} cases"
    assert not problems.counts, f"\n{problems}"


# --- Every bit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", META)
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_flipped_bit_of_the_directory_s_metadata_is_harmless_or_refused(variant: str, name: str) -> None:
    """No bit of `meta/` can make topics or records vanish, change, or come back as others."""
    path, problems = join(DATA, "meta", name), Problems()
    directory = small(variant)
    if not directory.image.get(path):
        pytest.skip(f"{name} is empty or not there when {variant}")
    step = BIT_STEP if variant == "closed" or name == "lock" else 23
    sweep_bits(directory, path, step=step, problems=problems)
    report(f"{variant} {name} bits", problems, at_least=min(len(directory.data(path)) * 8 // 23, 100))


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_flipped_bit_of_partition_json_is_refused(variant: str) -> None:
    """The file that says which segments there are is believed whole or not at all."""
    directory, problems = lived_in(variant), Problems()
    path = partition_path("orders", 0, "partition.json")
    sweep_bits(directory, path, step=BIT_STEP if variant == "closed" else 29, problems=problems)
    report(f"{variant} partition.json bits", problems, at_least=200)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_flipped_bit_of_a_mark_costs_no_record(variant: str) -> None:
    """The mark is a lower bound: without one of its slots, or both, the log itself is asked."""
    problems = Problems()
    sweep_bits(
        small(variant),
        partition_path("a", 0, "mark"),
        step=BIT_STEP if variant == "killed" else 31,
        problems=problems,
    )
    sweep_bits(lived_in(variant), partition_path("orders", 0, "mark"), step=29, problems=problems)
    report(f"{variant} mark bits", problems, at_least=100)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("which", ["sealed", "cut", "active"])
def test_any_flipped_bit_of_a_segment_is_refused_or_changes_no_record(variant: str, which: str) -> None:
    """One bit of a segment costs the records that lie on it, by name, and never shows other ones."""
    directory, problems = lived_in(variant), Problems()
    path = segment_file("orders", 0, bases_of(directory)[which])
    step = BIT_STEP if (variant, which) in {("closed", "sealed"), ("killed", "active")} else 11
    sweep_bits(directory, path, step=step, problems=problems)
    report(f"{variant} {which} segment bits", problems, at_least=150)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("suffix", ["idx", "timeidx"])
def test_any_flipped_bit_of_an_index_changes_no_answer(variant: str, suffix: str) -> None:
    """Indexes are derived: damaged ones are noticed, and built again from the log."""
    directory, problems = lived_in(variant), Problems()
    for which, base in bases_of(directory).items():
        path = segment_file("orders", 0, base, suffix)
        if path in directory.image:
            step = BIT_STEP if which != "cut" and variant == "closed" else 11
            sweep_bits(directory, path, step=step, problems=problems)
    report(f"{variant} {suffix} bits", problems, at_least=80)


def sent_again(files: MemoryFiles) -> list[str]:
    """Send everything again that producers sent: each is answered as it was, and nothing is appended."""
    found = []
    with open_log(files) as log:
        partition = log.data_directory.partitions.own("payments", 0)
        end = partition.log_end_offset
        for sent, base in PAID:
            try:
                if send(partition, sent)[0] != base:
                    found.append("a batch that was sent again was stored again")
            except CordwoodError as error:
                found.append(f"a batch that was sent again was refused with {type(error).__name__}")
        if partition.log_end_offset != end:
            found.append("what was sent again made the log longer")
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_damage_to_a_snapshot_of_producers_changes_an_answer(variant: str) -> None:
    """It is derived: whatever bit, length or file is wrong, the log knows what was sent (O6, R5)."""
    directory, problems = lived_in(variant), Problems()
    path = partition_path("payments", 0, "producers.json")
    data, damage = directory.data(path), damage_to(path)
    step = BIT_STEP if variant == "closed" else 11
    changes: list[tuple[str, bytes | None]] = [("as it was", data), ("deleted", None)]
    changes += [(f"bit {bit}", flipped(data, bit)) for bit in bits_of(data, step)]
    changes += [(f"cut to {length}", data[:length]) for length in range(0, len(data), every(step))]
    changes += [("longer", data + more) for more in (bytes(1), b"\n", b"x", data)]
    others = [other for other in directory.files() if other.endswith("producers.json") and other != path]
    changes += [(f"that of {other}", directory.data(other)) for other in others]
    assert others, "no other partition has one"
    for n, (name, changed) in enumerate(changes):
        files = disk_of(
            directory.image, {} if changed is None else {path: changed}, [path] if changed is None else []
        )
        # Records are not found through it, so now and then is often enough to look at them.
        found = [] if n % 8 else look(files, directory.contents, damage)
        problems.add(f"{path} {name}", found + sent_again(files))
    report(f"{variant} producers.json", problems, at_least=500 if step == BIT_STEP else 200)


def bases_of(directory: Directory) -> dict[str, int]:
    """The base offsets of a sealed segment, of the one that a truncation cut, and of the active one."""
    segments = partition_path("orders", 0, "segments")
    bases = sorted(
        int(path[-24:-4]) for path in directory.image if path.startswith(segments) and path.endswith(".log")
    )
    cut = max(base for base in bases if base <= 11)
    sealed = next(base for base in bases if base not in (cut, bases[-1]))
    return {"sealed": sealed, "cut": cut, "active": bases[-1]}


# --- Every length, and no file ----------------------------------------------------------------------


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2] if name[:20].isdigit() else name


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "kind",
    [*META, "partition.json", "partition mark", "log", "idx", "timeidx", "producers.json"],
    ids=lambda kind: str(kind),
)
def test_a_file_cut_at_any_length_or_gone_is_harmless_or_refused(
    variant: str, kind: str, read_only: bool
) -> None:
    """Shortened, emptied or deleted: never taken for a log that has less, and still so after appending."""
    directory, problems = small(variant) if kind in META else lived_in(variant), Problems()
    for path, data in directory.files().items():
        if kind_of(path) != kind.rpartition(" ")[2]:
            continue
        damage = damage_to(path)
        if read_only:
            damage.derived = damage.derived and not path.endswith("mark")
        thorough = not read_only and variant == "closed" and "/1/" not in path
        # Of the padding of marks some lengths.
        padded = path.endswith("mark")
        step = every(3 if thorough and not padded else 9)
        lengths: list[int | None] = [*range(0, len(data), step), None]
        for length in lengths:
            changed = {} if length is None else {path: data[:length]}
            files = disk_of(directory.image, changed, gone=[path] if length is None else [])
            found = look(files, directory.contents, damage, read_only=read_only)
            if HANGS not in found and not read_only and (length is None or length % 9 == 0):
                found += use(files, directory.contents, damage)
            problems.add(f"{path} {'deleted' if length is None else f'cut to {length}'}", found)
    if not problems.cases:
        pytest.skip(f"no {kind} when {variant}")
    report(f"{variant} {kind} lengths", problems, at_least=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bytes_after_the_end_of_a_file_are_never_records(variant: str) -> None:
    """Zeros, garbage or a second copy at the end of any file: the original, or a refusal."""
    directory, problems = lived_in(variant), Problems()
    for path, data in directory.files().items():
        for more in (bytes(16), bytes(1000), b"\xa5" * 77, data, b"\n"):
            files = disk_of(directory.image, {path: data + more})
            damage = damage_to(path)
            found = look(files, directory.contents, damage) + use(files, directory.contents, damage)
            problems.add(f"{path} and {more[:20]!r}…", found)
    report(f"{variant} longer files", problems, at_least=100)


# --- Bytes that were right somewhere else, or some time ago -------------------------------------------


def misplaced(directory: Directory) -> Iterator[tuple[str, bytes, str]]:
    """Yield (path, content, what) with frames of one segment swapped, doubled, zeroed or out of date."""
    logs = [path for path in directory.files() if path.endswith(".log") and "/orders/0/" in path]
    for path in logs:
        data = directory.data(path)
        spans = frames_of(data)
        for i, (start, end) in enumerate(spans):
            yield path, data[:start] + bytes(end - start) + data[end:], f"frame {i} zeroed"
            yield path, data[:start] + bytes(len(data) - start), f"zeros from frame {i} on"
            yield path, data[:start] + data[end:], f"frame {i} left out"
            for j, (other, other_end) in enumerate(spans):
                if i != j and other_end - other == end - start:
                    twice = data[:start] + data[other:other_end] + data[end:]
                    yield path, twice, f"frame {j} over frame {i}"
                    if i < j:
                        swapped = twice[:other] + data[start:end] + twice[other_end:]
                        yield path, swapped, f"frames {i} and {j} swapped"
            for past in directory.earlier:
                old = past.get(path) or b""
                stale = old[start:end]
                if len(stale) == end - start and stale != data[start:end]:
                    yield path, data[:start] + stale + data[end:], f"frame {i} as it was"
        for other_path in logs:
            if other_path != path:
                yield path, directory.data(other_path), f"the bytes of {other_path}"


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_valid_bytes_in_the_wrong_place_or_time_are_refused(variant: str, read_only: bool) -> None:
    """Swapped, doubled, zeroed and stale frames have good checksums; offset, order and epoch tell."""
    directory, problems = lived_in(variant), Problems()
    kinds: dict[str, int] = {}
    for path, data, what in misplaced(directory):
        kinds[what.split()[-1]] = kinds.get(what.split()[-1], 0) + 1
        files = disk_of(directory.image, {path: data})
        found = look(files, directory.contents, Damage((path,)), read_only=read_only)
        problems.add(f"{path}: {what}", found)
    assert kinds["was"], "no stale frame was tried"
    assert kinds["swapped"], "no frames were swapped"
    report(f"{variant} misplaced frames", problems, at_least=50)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_frame_from_before_a_truncation_never_comes_back(variant: str) -> None:
    """`partition.json` says which epoch an offset was appended under; a frame of an older one is stale.

    The cut segment holds both epochs, so it takes each frame's own offset to tell (I1: epoch).
    """
    directory, problems = lived_in(variant), Problems()
    base = bases_of(directory)["cut"]
    path = segment_file("orders", 0, base)
    data, spans = directory.data(path), frames_of(directory.data(path))
    for start, end in spans:
        frame = data[start:end]
        if int.from_bytes(frame[12:16], "big") == 0:
            continue
        # The same frame as if appended before the truncation: the epoch is not under the checksum.
        stale = frame[:12] + bytes(4) + frame[16:]
        files = disk_of(directory.image, {path: data[:start] + stale + data[end:]})
        refused = False
        with open_log(files) as log:
            topic = log.topic("orders")
            try:
                list(topic.read(0, int.from_bytes(frame[:8], "big"), int.from_bytes(frame[:8], "big") + 1))
            except CorruptRange as error:
                refused = error.path == path
        problems.add(f"{path} byte {start}", [] if refused else ["a frame of an older epoch was served"])
    report(f"{variant} frames of an older epoch", problems, at_least=1)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_older_version_of_a_file_is_noticed_or_harmless(variant: str, read_only: bool) -> None:
    """A restore that brought back one file of last week: never a log that has less, or other records."""
    directory, problems = lived_in(variant), Problems()
    for past in directory.earlier:
        for path, data in past.items():
            if data is None or path not in directory.image or data == directory.image[path]:
                continue
            damage = damage_to(path)
            if path.endswith(("partition.json", "mark", "catalogue.log")):
                damage = Damage((path, path.rpartition("/")[0]))
            if path.endswith(("lock", ".log")) or (read_only and path.endswith("mark")):
                # Who held it then is nobody's business; an older mark is a smaller truth, but a truth.
                # Stale frames that are valid in themselves are for verify to find, by the segment's hash.
                continue
            files = disk_of(directory.image, {path: data})
            found = look(files, directory.contents, damage, read_only=read_only)
            problems.add(f"{path} of earlier", found)
    report(f"{variant} stale files", problems, at_least=5)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_partitions_whose_directories_were_exchanged_are_refused(read_only: bool) -> None:
    """Each directory says whose records it has: a partition never answers with another one's."""
    directory = lived_in("closed")
    problems = Problems()
    for one, two in ((("orders", 0), ("orders", 1)), (("orders", 1), ("payments", 0))):
        first, second = partition_path(*one), partition_path(*two)
        moved: dict[str, bytes | None] = {}
        for path, data in directory.image.items():
            if path.startswith(f"{first}/"):
                path = second + path[len(first) :]
            elif path.startswith(f"{second}/"):
                path = first + path[len(second) :]
            moved[path] = data
        damage = Damage((f"{first}/", first, f"{second}/", second))
        found = look(disk_of(moved), directory.contents, damage, read_only=read_only)
        problems.add(f"{first} and {second}", found)
        swapped = {
            f"{first}/partition.json": directory.data(f"{second}/partition.json"),
            f"{second}/partition.json": directory.data(f"{first}/partition.json"),
        }
        found = look(disk_of(directory.image, swapped), directory.contents, damage, read_only=read_only)
        problems.add(f"partition.json of {first} and {second}", found)
    report("exchanged partitions", problems, at_least=4)


# --- What is left is served ---------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_damage_costs_no_more_than_its_index_interval(variant: str, how: str) -> None:
    """Sound frames before the damage, and from the next index entry on, are served: refuse that range only.

    Without an index beyond the damage, as after a cut, everything before it still is.
    """
    directory, problems = lived_in(variant), Problems()
    for base in bases_of(directory).values():
        path = segment_file("orders", 0, base)
        data, spans = directory.data(path), frames_of(directory.data(path))
        entries = directory.image.get(path[:-3] + "idx") or b""
        indexed = [int.from_bytes(entries[i : i + 8], "big") for i in range(0, len(entries), 16)]
        for start, end in spans:
            first = int.from_bytes(data[start : start + 8], "big")
            changed = flipped(data, (end - 1) * 8) if how == "flipped" else data[: end - 1]
            content = directory.contents["orders", 0]
            following = [offset for offset in indexed if offset > first] if how == "flipped" else []
            others = [int(p[-24:-4]) for p in directory.image if "/orders/0/" in p and p.endswith(".log")]
            resume = min([*following, *(b for b in others if b > first), content.end])
            lost = range(first, resume)
            wanted = [record for record in content.records if record.offset not in lost]
            with open_log(disk_of(directory.image, {path: changed})) as log:
                topic, got, at = log.topic("orders"), [], content.start
                while at < content.end:
                    try:
                        for record in topic.read(0, at):
                            got.append(record)
                            at = record.offset + 1
                        break
                    except CorruptRange as error:
                        at = max(error.resume_offset, at + 1)
            found = (
                [] if [r for r in got if r.offset not in lost] == wanted else ["sound records were refused"]
            )
            problems.add(f"{path} frame at {start} {how}", found)
    report(f"{variant} {how} frames", problems, at_least=8)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", ["deleted", "flipped", "emptied", "longer"])
@pytest.mark.parametrize("which", ["active", "sealed"])
def test_an_index_comes_back_byte_for_byte(variant: str, which: str, how: str) -> None:
    """After reading, a pass of background work and a close, the index file is what it was before."""
    directory = lived_in(variant)
    expected_files = disk_of(directory.image)
    with open_log(expected_files) as log:
        list(log.topic("orders").read(0, 7))
        log.maintain()
    expected = image(expected_files, DATA)
    problems = Problems()
    for base in {
        name: base for name, base in bases_of(directory).items() if (name == "active") == (which == "active")
    }.values():
        for suffix in ("idx", "timeidx"):
            path = segment_file("orders", 0, base, suffix)
            data = directory.image.get(path)
            if not data:
                continue
            changed = {
                "deleted": b"",
                "flipped": flipped(data, 77),
                "emptied": b"",
                "longer": data + b"x" * 16,
            }
            files = disk_of(directory.image, {path: changed[how]}, gone=[path] if how == "deleted" else [])
            with open_log(files) as log:
                list(log.topic("orders").read(0, 7))
                log.maintain()
            now = image(files, DATA).get(path)
            problems.add(path, [] if now == expected[path] else ["the index did not come back"])
    report(f"{variant} {which} indexes {how}", problems, at_least=1 if variant == "killed" else 2)


# --- Never empty --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("name", ["broker.id", "catalogue.log", "catalogue.mark"])
def test_topics_without_records_survive_a_missing_file_or_are_refused(name: str, read_only: bool) -> None:
    """A directory whose topics have no records yet has no `topics/`; it is not a new one for that (R6)."""
    files = MemoryFiles()
    log = open_log(files)
    log.topic("created")
    log.close()
    left = image(files, DATA)
    path = join(DATA, "meta", name)
    for changed, gone in (({path: b""}, []), ({}, [path])):
        found = look(
            disk_of(left, changed, gone),
            {("created", 0): contents_of(files)["created", 0]},
            Damage((path, f"{DATA} is not a data directory"), derived=name == "catalogue.mark"),
            read_only=read_only,
        )
        assert not found, (gone, found)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("name", ["partition.json", "mark", "segment"])
def test_a_partition_whose_records_are_all_gone_keeps_its_place_or_is_refused(
    name: str, read_only: bool
) -> None:
    """With every record deleted on purpose the next offset still stands; it is not 0 again (O1, R6)."""
    files = MemoryFiles()
    log = open_log(files)
    topic = log.topic("emptied", 1, SMALL)
    for i in range(7):
        topic.append(b"%d" % i)
    topic.roll()
    topic.advance_log_start(0, 7)
    log.close()
    left, contents = image(files, DATA), contents_of(files)
    assert (contents["emptied", 0].start, contents["emptied", 0].end) == (7, 7)
    path = segment_file("emptied", 0, 7) if name == "segment" else partition_path("emptied", 0, name)
    for changed, gone in (({path: b""}, []), ({}, [path])):
        damaged = disk_of(left, changed, gone)
        found = look(damaged, contents, Damage((path,)), read_only=read_only)
        if not read_only:
            found += use(damaged, contents, Damage((path,)))
        assert not found, (gone, found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_reader_beside_finds_the_original_or_a_refusal_whatever_bit_is_flipped(variant: str) -> None:
    """Reading only, nothing can be mended, and nothing may be missing for it."""
    directory = lived_in(variant)
    cases: dict[str, Problems] = {}
    for path in directory.files():
        problems = cases.setdefault(kind_of(path), Problems())
        step = 421 if path.endswith(("mark", "checkpoint.json")) else 97
        sweep_bits(directory, path, step=step, read_only=True, problems=problems)
    for kind, problems in cases.items():
        print(f"{variant} {kind}, reading only: {problems.cases} cases")
    found = "\n".join(f"{kind}: {problems}" for kind, problems in cases.items() if problems.counts)
    assert not found, f"\n{found}"
