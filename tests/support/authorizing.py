"""A server in memory whose requests come without sockets, each from a principal of the test's choice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, cast

import msgspec

from cordwood.config import Endpoint
from cordwood.config.loading import load_broker_config
from cordwood.host import Host
from cordwood.protocol.apis import (
    ApiKey,
    Request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cordwood.security import (
    ANONYMOUS,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    Principal,
    QuotaClient,
    ResourceType,
)
from cordwood.server.broker import open_node
from cordwood.server.connections import Exchange, Prepared
from cordwood.server.server import Server
from cordwood.server.service import Service
from support.clocks import ManualClock
from support.patience import SECONDS_MAX

#: The orgs of the server's two listeners.
OWN, OTHER = 0, 7
HERE, ELSEWHERE = "10.0.0.1", "10.0.0.2"
ALICE, MALLORY, ROOT = (Principal("User", name) for name in ("alice", "mallory", "root"))
_SETTINGS = {
    "listeners": "OWN://127.0.0.1:0,OTHER://127.0.0.1:0",
    "cordwood.listener.OTHER.org": str(OTHER),
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
}
#: Ids that are random in each run.
_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Answered(NamedTuple):
    """An answer: its bytes from the correlation id on, and decoded. ``closed`` says why there is none."""

    frame: bytes
    body: Any
    closed: str | None = None


class AskedExchange:
    """An exchange without a connection: its answer goes to *done*."""

    def __init__(self, request: Request, principal: Principal, host: str, size: int) -> None:
        self.request = request
        self.principal = principal
        self.peer = f"/{host}"
        self.local = Endpoint("127.0.0.1", 9092, "OWN")
        self.size = size
        self.time: Any = None
        self.quota_client = QuotaClient(principal.name, "")
        self.on_lost: Any = None
        self.on_answer: Any = None
        self.done: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def answer(self, body: Any) -> None:
        """Encode the answer as a connection does, and decode it as a client does."""
        self.show(body)
        key, version = self.request.api_key, self.request.api_version
        if body is None:
            self.done.set_result(Answered(b"", None))
            return
        buffers = body.buffers(1) if isinstance(body, Prepared) else encode_response(key, version, 1, body)
        frame = b"".join(buffers)[4:]
        self.done.set_result(Answered(frame, decode_response(key, version, frame).body))

    def show(self, body: Any) -> None:
        """Pass the answer to whoever asked to see it."""
        seen, self.on_answer = self.on_answer, None
        if seen is not None:
            seen(body)

    def throttle(self, milliseconds: int) -> None:
        """Do not wait for quotas."""

    def fail(self, reason: str) -> None:
        """Note that the connection would be closed."""
        self.done.set_result(Answered(b"", None, reason))

    def attempt(self, call: Any) -> None:
        """Run a step; let what goes wrong reach the test."""
        try:
            call()
        except Exception as error:
            if self.done.done():
                raise
            self.done.set_exception(error)


class AskedServer:
    """A server on its own event loop, which runs while the test waits for an answer."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.clock = ManualClock()
        self._runner = asyncio.Runner()
        config, _ = load_broker_config({**_SETTINGS, **(settings or {})}, environment={})
        self._server = self._runner.run(self._start(config))
        assert self._server._contexts is not None
        self.contexts = self._server._contexts
        self.uuid = self.contexts[OWN].node.directory.identity.uuid

    async def _start(self, config: Any) -> Server:
        server = Server(open_node(None, config, clock=self.clock), config, Host(self.clock))
        server.start()
        assert server._contexts is not None
        context = server._contexts[OWN]
        async with asyncio.timeout(SECONDS_MAX):
            while not (context.groups.loaded and context.transactions.loaded):
                await asyncio.sleep(0)
        return server

    def __enter__(self) -> AskedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._server.close())
        self._runner.close()

    def ask(
        self,
        key: ApiKey,
        version: int,
        body: Any,
        principal: Principal = ANONYMOUS,
        *,
        host: str = HERE,
        org: int = OWN,
    ) -> Answered:
        """Return the answer to a request."""
        return self._runner.run(self._ask(key, version, body, principal, host, org))

    def start(
        self, key: ApiKey, version: int, body: Any, principal: Principal = ANONYMOUS, *, host: str = HERE
    ) -> asyncio.Future[Answered]:
        """Begin a request; `finish` returns its answer."""

        async def begin() -> asyncio.Future[Answered]:
            return self._begin(key, version, body, principal, host, OWN)

        return self._runner.run(begin())

    def finish(self, answer: asyncio.Future[Answered]) -> Answered:
        """Return an answer once it is there."""

        async def wait() -> Answered:
            async with asyncio.timeout(SECONDS_MAX):
                return await answer

        return self._runner.run(wait())

    async def _ask(
        self, key: ApiKey, version: int, body: Any, principal: Principal, host: str, org: int
    ) -> Answered:
        async with asyncio.timeout(SECONDS_MAX):
            return await self._begin(key, version, body, principal, host, org)

    def _begin(
        self, key: ApiKey, version: int, body: Any, principal: Principal, host: str, org: int
    ) -> asyncio.Future[Answered]:
        # The engine sets the offsets of a batch in place.
        frame = memoryview(bytearray().join(encode_request(key, version, 1, "asking", body)))[4:]
        exchange = AskedExchange(decode_request(frame), principal, host, len(frame))
        Service(self.contexts[org]).handle(cast("Exchange", exchange))
        return exchange.done

    def comparable(self, answer: Answered, ids: Mapping[bytes, bytes]) -> bytes:
        """Return the bytes of an answer without the ids of topics, members and the cluster: random ones."""
        frame = answer.frame.replace(self.uuid.encode(), b"cluster")
        for topic_id, name in ids.items():
            frame = frame.replace(topic_id, name)
        return _UUID.sub(b"random", frame)


def plain(body: Any) -> Any:
    """Return a message as dictionaries and lists."""
    if isinstance(body, msgspec.Struct):
        return {field: plain(getattr(body, field)) for field in body.__struct_fields__}
    if isinstance(body, list | tuple):
        return [plain(each) for each in body]
    return bytes(body) if isinstance(body, bytearray | memoryview) else body


def errors_in(body: Any, path: str = "") -> dict[str, set[int]]:
    """Return every error code of an answer, 0 included, by the path of its field."""
    found: dict[str, set[int]] = {}
    if isinstance(body, msgspec.Struct):
        for field in body.__struct_fields__:
            value = getattr(body, field)
            if field.endswith("error_code"):
                found.setdefault(f"{path}{field}", set()).add(int(value))
            elif isinstance(value, list):
                for each in value:
                    for at, codes in errors_in(each, f"{path}{field}.").items():
                        found.setdefault(at, set()).update(codes)
    return found


def rule(
    kind: ResourceType,
    operation: Operation,
    name: str,
    *,
    pattern: PatternType = PatternType.LITERAL,
    principal: Principal = ALICE,
    host: str = "*",
    permission: Permission = Permission.ALLOW,
) -> AclBinding:
    """Return a rule, for alice unless said otherwise."""
    return AclBinding(kind, name, pattern, str(principal), host, operation, permission)
