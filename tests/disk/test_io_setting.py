"""``cordwood.io=direct``: the files of a data directory bypass the page cache and hold the same bytes."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from support.commands import said

import cordwood
from cordwood.config import load_broker_config
from cordwood.disk.choosing import files_of
from cordwood.disk.direct import DirectFiles
from cordwood.errors import InvalidSetting, StorageError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is not there yet, on a file system with direct I/O."""
    try:
        DirectFiles().open(str(tmp_path / "probe"), "create").close()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip(f"no direct I/O at {tmp_path}")
        raise
    return tmp_path / "data"


def direct_stores(data: Path) -> list[bool]:
    """Return for each open descriptor of a store of *data* whether it was opened for direct I/O."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(f"{data}/topics/orders/") and path.endswith(".log"):
                flags = re.search(
                    r"^flags:\s*(\d+)", Path(f"/proc/self/fdinfo/{name}").read_text(), re.MULTILINE
                )
                assert flags is not None
                found.append(bool(int(flags[1], 8) & os.O_DIRECT))
        except OSError:
            # The descriptor of the listing itself.
            continue
    return found


def write(data: Path, count: int) -> list[bool]:
    with cordwood.open(data) as log:
        for number in range(count):
            log.topic("orders", config={"segment.bytes": "9000"}).append(
                b"%d" % number * 500, timestamp=number
            )
        return direct_stores(data)


def test_an_open_log_uses_the_setting_and_bytes_are_the_same_either_way(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffered = data.parent / "buffered"
    stores = write(buffered, 60)
    assert stores
    assert not any(stores)
    monkeypatch.setenv("CORDWOOD_IO", "direct")
    stores = write(data, 30)
    assert stores
    assert all(stores)
    # One value today, the other tomorrow, and a reader with each of them.
    monkeypatch.setenv("CORDWOOD_IO", "buffered")
    write(data, 30)
    expected = [b"%d" % number * 500 for number in range(30)] * 2
    for value in ("direct", "buffered"):
        monkeypatch.setenv("CORDWOOD_IO", value)
        with cordwood.open(data, read_only=True) as log:
            assert [record.value for record in log.topic("orders").read()] == expected
            # A map would bring sealed segments into the page cache.
            mapped = f"{data}/topics/orders/" in Path("/proc/self/maps").read_text()
            assert mapped is (value == "buffered")
        assert ": sound: " in said("verify", "--data", data)


def test_a_server_uses_the_setting(data: Path) -> None:
    with cordwood.Broker(data, config={"cordwood.io": "direct"}):
        said("produce", "-t", "orders", "--data", data, stdin=b"one\ntwo\n")
        stores = direct_stores(data)
        assert stores
        assert all(stores)
    assert said("consume", "-t", "orders", "-e", "--data", data) == "one\ntwo\n"


def test_where_there_is_no_direct_io_opening_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    monkeypatch.setenv("CORDWOOD_IO", "direct")
    with pytest.raises(StorageError, match="direct I/O is not supported there"):
        cordwood.open(tmp_path / "data")


def test_no_other_value_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDWOOD_IO", "fast")
    with pytest.raises(InvalidSetting, match="buffered or direct"):
        cordwood.open(tmp_path / "data")


def test_files_keep_their_permissions_under_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORDWOOD_IO", "direct")
    files = files_of(str(tmp_path), load_broker_config()[0])
    assert isinstance(files, DirectFiles)
    assert files.mode.file == 0o600
