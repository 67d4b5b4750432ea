"""Commands that say the same thing say it in the same way: how much there is, and where damage is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import refused, run, said

import cordwood


@pytest.mark.parametrize("closed", [True, False])
def test_doctor_verify_and_topic_list_count_the_same_things(tmp_path: Path, closed: bool) -> None:
    """With internal topics, a gap by compaction, topics without records, and topics in the shared log."""
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders", partitions=3).append_many([(None, b"a"), (None, b"b")], partition=1)
        log.create_topic("empty", partitions=2)
        for name in ("small", "smaller"):
            log.create_topic(name, partitions=2, config={"cordwood.storage": "shared"})
        log.topic("small").append_many([(None, b"c")] * 4, partition=0)
        customers = log.topic("customers", config={"cleanup.policy": "compact"})
        customers.append_many([(b"anna", b"1"), (b"anna", b"2"), (b"bela", b"3")])
        customers.roll()
        log.maintain(force=True)
    said("consume", "-t", "orders", "-e", "-G", "billing", "--data", data)
    held = None if closed else cordwood.open(data)
    listed = json.loads(said("topic", "list", "--internal", "--json", "--data", data))
    partitions = sum(each["partitions"] for each in listed)
    amounts = f"{len(listed)} topics (2 internal), {partitions} partitions"
    assert amounts == "7 topics (2 internal), 12 partitions"
    shown = said("topic", "list", "--data", data).splitlines()[1:]
    assert len(shown) == 7 - 2
    doctor = run("doctor", "--data", data).stdout
    assert f", {amounts}\n" in doctor
    assert f"first and last frame of {partitions} partitions are" in doctor
    verdict = said("verify", data).splitlines()[-1]
    assert f": sound: {amounts}, " in verdict
    report = json.loads(said("verify", data, "--json"))
    assert (report["topics"], report["internal_topics"], report["partitions"]) == (7, 2, 12)
    records, offsets = report["records"], sum(each["offsets"] for each in listed)
    # Compaction left one gap; the shared log has the records of its topics once more under its own name.
    assert offsets == records + 1 + 4
    one = json.loads(said("verify", data, "-t", "orders", "--json"))
    assert (one["topics"], one["partitions"], one["records"]) == (1, 3, 2)
    if held is not None:
        held.close()


@pytest.mark.parametrize(
    "config", ["cordwood.format=batch", "cordwood.format=frame", "cordwood.storage=shared"]
)
def test_verify_and_consume_name_the_same_position_for_the_same_damage(tmp_path: Path, config: str) -> None:
    """The beginning of the damaged frame, as in ``segment dump``, whichever byte of it is damaged."""
    data, (name, _, value) = tmp_path / "data", config.partition("=")
    with cordwood.open(data) as log:
        topic = log.topic("orders", config={name: value})
        for number in range(3):
            topic.append(b"value %d" % number, key=b"k")
    (segment,) = data.glob("topics/*/0/segments/*.log")
    sound, named = segment.read_bytes(), set()
    for place in range(0, len(sound), 5):
        damaged = bytearray(sound)
        damaged[place] ^= 0x10
        segment.write_bytes(damaged)
        sentence = refused("consume", "-t", "orders", "-e", "--data", data, code=4)
        match = re.search(rf"{re.escape(str(segment))} at byte (\d+): ", sentence)
        assert match, sentence
        result = run("verify", data, "--json")
        assert result.exit_code == 4
        found = [each for each in json.loads(result.stdout)["findings"] if each["path"] == str(segment)]
        assert found[0]["position"] == int(match[1]), (place, sentence, found)
        named.add(int(match[1]))
    print(f"{len(range(0, len(sound), 5))} damaged bytes, {len(named)} positions named")
    assert len(named) >= 3
