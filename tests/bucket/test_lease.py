"""With a lease the owner acknowledges nothing that a takeover could lose unseen. Rule 7."""

from __future__ import annotations

from itertools import count

import confluent_kafka
import pytest
from support.asking import Asking
from support.clocks import ManualClock
from support.data_directory import frame
from support.patience import SECONDS_MAX, until
from support.shipped import ShippedTree, new_nonce

import cordwood
from cordwood.bucket import perform, read_manifest
from cordwood.bucket.ownership import OwnerLease, StandbyLease
from cordwood.bucket.shipping import Shipper
from cordwood.bucket.stores import MemoryStore, RemoteStore
from cordwood.disk import MemoryFiles
from cordwood.errors import StoreUnavailable
from cordwood.host import Host
from cordwood.protocol import ErrorCode

LEASE_MS = 3_000
_numbers = count(1)


def test_the_owner_acknowledges_for_one_lease_after_it_sent_its_last_piece() -> None:
    lease = OwnerLease(LEASE_MS, 1_000)
    assert lease.may_acknowledge(3_999)
    assert not lease.may_acknowledge(4_000)
    assert lease.renew(2_000, 3_999)
    assert lease.may_acknowledge(4_999)
    assert not lease.renew(4_000, 5_000), "it arrived when the lease had run out"
    assert not lease.may_acknowledge(5_000)
    lease.restart(5_500)
    assert lease.may_acknowledge(8_499)
    assert OwnerLease(0, 0).may_acknowledge(1 << 60)


def test_a_standby_judges_by_the_beginning_of_its_last_look() -> None:
    lease = StandbyLease((1, 1), 0, 0)
    lease.look((1, 1), 4_000, 9_000)
    assert not lease.has_run_out(LEASE_MS)
    lease.look((1, 1), 4_500, 4_600)
    assert lease.has_run_out(LEASE_MS)
    assert not lease.has_run_out(0)
    lease.look((1, 2), 4_700, 4_800)
    assert not lease.has_run_out(LEASE_MS)


class Away(MemoryStore):
    """A store in which time goes by at every creation, as long as it is slow."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.slow_ms = 0

    def create(self, key: str, data: bytes) -> str:
        self.clock.advance(self.slow_ms)
        return super().create(key, data)


@pytest.mark.parametrize("slow_ms", [0, LEASE_MS - 1, LEASE_MS, 10 * LEASE_MS])
def test_a_lease_that_ran_out_comes_back_with_a_new_manifest(slow_ms: int) -> None:
    """A standby that was about to claim the log has read the one before, and is refused."""
    clock = ManualClock()
    store = Away(clock)
    shipped = ShippedTree(MemoryFiles(), store)
    shipper = Shipper(store, shipped.inner, "/data", shipped.journal, Host(clock), new_nonce())
    shipper.take_over(LEASE_MS)
    assert shipper.may_acknowledge()
    before = perform(store, read_manifest(), shipper.pause)
    store.slow_ms = slow_ms
    shipper.ship(keep_alive=True)
    ran_out = slow_ms >= LEASE_MS
    changed = perform(store, read_manifest(), shipper.pause).version != before.version
    assert changed == ran_out
    assert shipper.may_acknowledge()
    clock.advance(LEASE_MS)
    assert not shipper.may_acknowledge()


def test_many_large_objects_take_longer_than_the_lease_and_it_lasts() -> None:
    clock = ManualClock()
    store = Away(clock)
    shipped = ShippedTree(MemoryFiles(), store)
    shipper = Shipper(store, shipped.inner, "/data", shipped.journal, Host(clock), new_nonce())
    shipper.take_over(LEASE_MS)
    file = shipped.files.open("/data/large", "create")
    for position in range(0, 200 << 20, 8 << 20):
        file.write_at(position, [bytes(8 << 20)])
    file.sync()
    file.close()
    store.slow_ms = LEASE_MS // 4
    before = perform(store, read_manifest(), shipper.pause)
    shipper.ship()
    assert perform(store, read_manifest(), shipper.pause).version == before.version, "it never ran out"
    assert len(store.list("b/")) > 3


@pytest.fixture
def bucket(moto_url: str, s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    return f"s3://bucket/leases/{next(_numbers)}"


@pytest.mark.parametrize("lease_ms", [0, 1_000])
def test_a_store_that_is_away_stops_acknowledgements_only_under_a_lease_and_they_come_back(
    lease_ms: int, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are told to try again, and an idempotent producer has every record once in the end."""
    config = {"cordwood.bucket": bucket, "cordwood.bucket.lease.ms": str(lease_ms)}
    away = False
    create = RemoteStore.create

    def create_unless_away(store: RemoteStore, key: str, data: bytes) -> str:
        if away:
            raise StoreUnavailable("the test is unplugged")
        return create(store, key, data)

    monkeypatch.setattr(RemoteStore, "create", create_unless_away)
    settings = {**config, "cordwood.bucket.interval.ms": "100"}
    with cordwood.Broker(config=settings) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")

        def code() -> ErrorCode:
            return ErrorCode(client.produce("orders", frame(0, [b"asked"]).data).error_code)

        until(lambda: code() is ErrorCode.NONE, "it acknowledges")
        away = True
        if not lease_ms:
            shipped = broker._node.shipped
            assert shipped is not None
            retries = shipped.status.retries
            until(lambda: shipped.status.retries > retries + 3, "the store is away")
            assert code() is ErrorCode.NONE
            away = False
            return
        until(lambda: code() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "it stops")
        acknowledged: list[int] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )

        def told(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            assert error is None
            acknowledged.append(message.offset() or 0)

        for number in range(20):
            producer.produce("orders", b"once %d" % number, partition=0, on_delivery=told)
        assert producer.flush(1) == 20
        assert acknowledged == []
        away = False
        assert producer.flush(SECONDS_MAX) == 0
        assert acknowledged == list(range(acknowledged[0], acknowledged[0] + 20))
        assert code() is ErrorCode.NONE
        end = acknowledged[-1] + 2
        assert client.offset_at("orders", -1).offset == end
