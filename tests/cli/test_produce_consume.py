"""``cordwood produce`` and ``cordwood consume``: kcat's flags, on files and on a broker."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.commands import COMMAND, environment, refused, run, said, started
from support.patience import SECONDS_MAX

import cordwood
from cordwood import Broker
from cordwood.cli.backends import files as files_backend

Where = list[object]


def test_lines_come_back_as_they_went_in(where: Where) -> None:
    lines = b"".join(b"line %d \xff\r\n" % i for i in range(3000)) + b"no end"
    said("produce", "-t", "orders", *where, stdin=lines)
    result = run("consume", "-t", "orders", "-e", *where)
    assert result.stdout_bytes == lines + b"\n"


def test_an_event_type_of_kimberlite_is_a_header_that_goes_in_and_comes_out(where: Where) -> None:
    said("topic", "create", "events", "--config", "cordwood.format=kimberlite", *where)
    said("produce", "-t", "events", "-H", "cordwood.event_type=7", *where, stdin=b"refund\n")
    said("produce", "-t", "events", *where, stdin=b"plain\n")
    lines = said("consume", "-t", "events", "-e", "-f", r"%s %h\n", *where).splitlines()
    assert [line.strip() for line in lines] == ["refund cordwood.event_type=7", "plain"]
    refused("produce", "-t", "events", "-H", "cordwood.event_type=65536", *where, stdin=b"too large\n")
    assert len(said("consume", "-t", "events", "-e", *where).splitlines()) == 2


def test_keys_headers_and_what_is_empty_or_none(where: Where) -> None:
    """As kcat: empty lines are none; only -Z takes an empty key or value for a null one."""
    stdin = b"k:v\n\n:v\nk:\nplain\nk:a:b\n"
    said("produce", "-t", "plain", "-p", 0, "-K", ":", "-H", "a=1", "-H", "none", *where, stdin=stdin)
    said("produce", "-t", "nulls", "-p", 0, "-K", ":", "-Z", *where, stdin=stdin)
    letters = ["-e", "-f", r"%K %k|%S %s|%h\n", *where]
    assert said("consume", "-t", "plain", *letters).splitlines() == [
        "1 k|1 v|a=1,none=NULL",
        "0 |1 v|a=1,none=NULL",
        "1 k|0 |a=1,none=NULL",
        "-1 |5 plain|a=1,none=NULL",
        "1 k|3 a:b|a=1,none=NULL",
    ]
    assert said("consume", "-t", "nulls", "-Z", *letters).splitlines() == [
        "1 k|1 v|",
        "-1 NULL|1 v|",
        "1 k|-1 NULL|",
        "-1 NULL|5 plain|",
        "1 k|3 a:b|",
    ]


def test_a_key_goes_to_the_same_partition_by_files_and_by_address(tmp_path: Path) -> None:
    rows = b"".join(b"key-%d:v\n" % i for i in range(50))
    said("topic", "create", "orders", "--partitions", 4, "--data", tmp_path)
    said("produce", "-t", "orders", "-K", ":", "--data", tmp_path, stdin=rows)
    with Broker(tmp_path) as broker:
        said("produce", "-t", "orders", "-K", ":", "--bootstrap", broker.bootstrap, stdin=rows)
    places: dict[str, set[str]] = {}
    for line in said("consume", "-t", "orders", "-e", "-f", r"%k %p\n", "--data", tmp_path).splitlines():
        key, partition = line.split()
        places.setdefault(key, set()).add(partition)
    assert len(places) == 50
    assert all(len(each) == 1 for each in places.values())


def test_where_to_begin(where: Where) -> None:
    said("produce", "-t", "orders", *where, stdin=b"0\n1\n2\n3\n4\n")
    last = json.loads(said("consume", "-t", "orders", "-o", "-1", "-e", "-J", *where))

    def values(*options: object) -> str:
        return said("consume", "-t", "orders", "-e", "-f", "%s", *options, *where)

    assert values() == values("-o", "beginning") == values("-o", "s@0") == "01234"
    assert values("-o", "end") == values("-o", 5) == values("-o", f"s@{last['ts'] + 1}") == ""
    assert values("-o", 3) == values("-o", -2) == "34"
    assert values("-o", -99) == "01234"
    assert values("-c", 2) == "01"
    assert values("-o", 1, "-c", 2, "-p", 0) == "12"


def test_format_letters_and_escapes(where: Where) -> None:
    said("produce", "-t", "orders", "-K", "=", "-H", "trace=7", *where, stdin=b"alice=tea\n")
    (time,) = [json.loads(said("consume", "-t", "orders", "-e", "-J", *where))["ts"]]
    text = said("consume", "-t", "orders", "-e", "-f", r"%t|%p|%o|%k|%s|%T|%h|%%|\t|\x41|\n", *where)
    assert text == f"orders|0|0|alice|tea|{time}|trace=7|%|\t|A|\n"


def test_json_has_text_where_it_is_text_and_else_says_base64(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        topic = log.topic("orders")
        topic.append("Tee für zwei".encode(), key=b"k", headers=[("a", b"1"), ("b", None)], timestamp=5)
        topic.append(b"\xff\x00", key=b"\xfe", headers=[("a", b"\xff"), ("b", None)], timestamp=6)
        topic.append(None, timestamp=7)
    lines = said("consume", "-t", "orders", "-e", "-J", "--data", tmp_path).splitlines()
    common = {"topic": "orders", "partition": 0}
    assert [json.loads(line) for line in lines] == [
        {
            **common,
            "offset": 0,
            "ts": 5,
            "headers": ["a", "1", "b", None],
            "key": "k",
            "payload": "Tee für zwei",
        },
        {
            **common,
            "offset": 1,
            "ts": 6,
            "headers_base64": ["a", base64.b64encode(b"\xff").decode(), "b", None],
            "key_base64": base64.b64encode(b"\xfe").decode(),
            "payload_base64": base64.b64encode(b"\xff\x00").decode(),
        },
        {**common, "offset": 2, "ts": 7, "headers": [], "key": None, "payload": None},
    ]


def test_a_group_goes_on_where_it_was(where: Where) -> None:
    said("produce", "-t", "orders", *where, stdin=b"a\nb\nc\n")
    consume = ["consume", "-t", "orders", "-e", "-G", "billing", *where]
    assert said(*consume, "-c", 1) == "a\n"
    assert said(*consume) == "b\nc\n"
    assert said(*consume) == ""
    said("produce", "-t", "orders", *where, stdin=b"d\n")
    assert said(*consume) == "d\n"
    assert said("consume", "-t", "orders", "-e", "-G", "late", "-o", "end", *where) == ""
    sentence = refused("consume", "-t", "orders", "-G", "billing", "-o", 3, *where, code=2)
    assert sentence.startswith("-G excludes -p")


def test_lines_that_come_together_are_synced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty thousand lines cost as many syncs as they fill frames, not one each."""
    frames: list[object] = []
    append = cordwood.Topic.append_many

    def counted(self: cordwood.Topic, rows: Any, *, partition: int | None = None) -> Any:
        frames.append(rows)
        return append(self, rows, partition=partition)

    monkeypatch.setattr(cordwood.Topic, "append_many", counted)
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"a line\n" * 20_000)
    assert 1 <= len(frames) <= 5
    assert json.loads(said("topic", "list", "--json", "--data", tmp_path))[0]["offsets"] == 20_000


def test_frames_stay_below_what_the_topic_takes(tmp_path: Path) -> None:
    data = ["--data", tmp_path]
    said("topic", "create", "small", "--config", "max.message.bytes=1000", *data)
    said("produce", "-t", "small", *data, stdin=b"some line\n" * 500)
    assert len(said("consume", "-t", "small", "-e", *data).splitlines()) == 500


def test_a_line_that_is_too_long_is_refused_and_what_came_before_is_said_to_be_stored(tmp_path: Path) -> None:
    data = ["--data", tmp_path]
    said("topic", "create", "small", "--config", "max.message.bytes=1000", *data)
    process = started("produce", "-t", "small", *data)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    while said("consume", "-t", "small", "-e", *data) != "first\n":
        assert process.poll() is None
    _, errors = process.communicate(b"x" * 5000 + b"\n", timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert errors.decode().startswith("Error: ")
    assert errors.decode().endswith("; stored before it: 1 record\n")
    assert said("consume", "-t", "small", "-e", *data) == "first\n"


def test_long_lines_go_through_a_broker_and_longer_ones_are_refused_by_it(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        where = ["-t", "orders", "--bootstrap", broker.bootstrap]
        said("produce", *where, stdin=b"x" * (3 << 20))
        assert len(said("consume", *where, "-e")) == (3 << 20) + 1
        sentence = refused("produce", *where, stdin=b"x" * (17 << 20))
        assert sentence.startswith(f"{broker.bootstrap} did not take a record: ")


def test_a_slow_writers_lines_do_not_wait_for_a_buffer_to_fill(tmp_path: Path) -> None:
    """What was written to the pipe is appended while the pipe stays open; a follower sees it."""
    said("topic", "create", "orders", "--data", tmp_path)
    follower = started("consume", "-t", "orders", "--data", tmp_path)
    producer = started("produce", "-t", "orders", "--data", tmp_path)
    assert producer.stdin is not None
    assert follower.stdout is not None
    for line in (b"one\n", b"two\n"):
        producer.stdin.write(line)
        producer.stdin.flush()
        assert follower.stdout.readline() == line
    assert producer.communicate(timeout=SECONDS_MAX) == (b"", b"")
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=SECONDS_MAX) == (b"", b"cordwood: interrupted\n")
    assert (producer.returncode, follower.returncode) == (0, 130)


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"a line of text\n" * 50_000)
    for command in (f"consume -t orders -e --data {tmp_path}", f"consume -t orders --data {tmp_path}"):
        pipeline = f"{' '.join(COMMAND)} {command} | head -n 1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", pipeline], capture_output=True, env=environment())
        assert (done.returncode, done.stdout, done.stderr) == (0, b"a line of text\n", b"")


def test_ctrl_c_ends_a_command_with_one_line_and_what_was_appended_stays(tmp_path: Path) -> None:
    process = started("produce", "-t", "orders", "--data", tmp_path)
    assert process.stdin is not None
    process.stdin.write(b"kept\n")
    process.stdin.flush()
    while not tmp_path.joinpath("topics", "orders").exists() or (
        said("consume", "-t", "orders", "-e", "--data", tmp_path) != "kept\n"
    ):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out, errors) == (130, b"", b"cordwood: interrupted\n")
    assert said("verify", tmp_path).startswith(f"{tmp_path}: sound")


def test_a_group_commits_only_what_the_reader_of_a_pipe_was_given(tmp_path: Path) -> None:
    """However early ``head`` goes away, no record counts as consumed that was not written to it."""
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"".join(b"%d\n" % i for i in range(100_000)))
    pipeline = f"{' '.join(COMMAND)} consume -t orders -G billing --data {tmp_path} | head -n 1"
    subprocess.run(["bash", "-c", pipeline], capture_output=True, env=environment())
    described = json.loads(said("group", "describe", "billing", "--json", "--data", tmp_path))
    # What fits into the pipe is written; it is far from all.
    assert 1 <= described["offsets"][0]["committed"] < 50_000


def test_two_writers_on_one_directory_take_turns(tmp_path: Path) -> None:
    """A directory that another command holds for a moment is waited for."""
    processes = [started("produce", "-t", "orders", "--data", tmp_path) for _ in range(3)]
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write(b"line %d\n" % number)
        process.stdin.close()
    for process in processes:
        assert process.wait(SECONDS_MAX) == 0, process.stderr.read() if process.stderr else ""
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    lines = said("consume", "-t", "orders", "-e", "--data", tmp_path).splitlines()
    assert sorted(lines) == ["line 0", "line 1", "line 2"]


def test_damage_comes_after_all_that_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_backend, "CHUNK_RECORDS", 2)
    with cordwood.open(tmp_path) as log:
        for i in range(5):
            log.topic("orders").append(b"value %d" % i)
    path = next(tmp_path.glob("topics/orders/0/segments/*.log"))
    size = os.path.getsize(path) // 5
    with open(path, "r+b") as file:
        file.seek(3 * size + size - 3)
        file.write(b"?")
    result = run("consume", "-t", "orders", "-e", "--data", tmp_path)
    assert result.exit_code == 4
    assert result.stdout == "value 0\nvalue 1\nvalue 2\n"
    assert "offsets from 3 are refused, reading can go on at 4 (with -o 4)" in result.stderr
    assert said("consume", "-t", "orders", "-e", "-o", 4, "--data", tmp_path) == "value 4\n"
