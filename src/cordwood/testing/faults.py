"""Faults on request: errors instead of answers, and answers that come late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from threading import Lock

from cordwood.errors import InvalidSetting, UnknownSetting
from cordwood.protocol import ApiKey, ErrorCode, failing
from cordwood.server import Context, Exchange, Handler, Prepared, Service

#: The client id of requests that no fault is for: those of the broker's own methods.
EXEMPT = "cordwood-testing"


def api_named(name: str) -> ApiKey:
    """Return the API with Kafka's name *name*, in any case: ``PRODUCE``, ``Produce``, ``ListOffsets``.

    Raises:
        UnknownSetting: If there is none; suggests one.
    """
    return ApiKey[_found(name, ApiKey.__members__, "API")]


def error_named(name: str) -> ErrorCode:
    """Return the error with Kafka's name *name*, in any case.

    Raises:
        UnknownSetting: If there is none; suggests one.
        InvalidSetting: If it is ``NONE``.
    """
    code = ErrorCode[_found(name, ErrorCode.__members__, "error")]
    if code is ErrorCode.NONE:
        raise InvalidSetting("error", name, "the name of an error")
    return code


def _found(name: str, names: Iterable[str], kind: str) -> str:
    plain = {each.replace("_", ""): each for each in names}
    asked = name.replace("_", "").upper()
    if asked in plain:
        return plain[asked]
    # Loaded here, because most tests never need a suggestion.
    import difflib

    near = difflib.get_close_matches(asked, plain, 1)
    raise UnknownSetting(name, plain[near[0]] if near else None, kind)


class Faults:
    """The faults of one broker. A test sets them on any thread; the broker's event loop meets them."""

    def __init__(self) -> None:
        self._lock = Lock()
        # Errors to answer with, each with the number of requests that it is still for; None is all of them.
        self._errors: dict[ApiKey, deque[tuple[ErrorCode, int | None]]] = {}
        self._delays_ms: dict[ApiKey | None, float] = {}
        #: Whether the broker has crashed: nothing is answered.
        self.crashed = False

    def fail(self, api: str, error: str, times: int | None) -> None:
        """Answer the next *times* requests of *api* with *error*, or all of them; see `KafkaBroker.fail`."""
        if times is not None and times < 1:
            raise InvalidSetting("times", times, "at least 1, or None for every request")
        key, code = api_named(api), error_named(error)
        with self._lock:
            self._errors.setdefault(key, deque()).append((code, times))

    def slow(self, milliseconds: float, api: str | None) -> None:
        """Delay requests of *api*, or of each API without a delay of its own. Raises as `api_named`."""
        if milliseconds < 0:
            raise InvalidSetting("milliseconds", milliseconds, "0 or more")
        key = None if api is None else api_named(api)
        with self._lock:
            self._delays_ms[key] = milliseconds

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._errors.clear()
            self._delays_ms.clear()

    def take_error(self, key: ApiKey) -> ErrorCode | None:
        """Return the error for a request that is handled now, or None."""
        with self._lock:
            planned = self._errors.get(key)
            if not planned:
                return None
            code, times = planned.popleft()
            if times is None or times > 1:
                planned.appendleft((code, None if times is None else times - 1))
            return code

    def delay_seconds(self, key: ApiKey) -> float:
        """Return the delay of a request that arrives now."""
        with self._lock:
            return self._delays_ms.get(key, self._delays_ms.get(None, 0.0)) / 1000


class FaultyService(Service):
    """Answers the requests of one connection, except for the faults of *faults*. On the loop."""

    def __init__(self, context: Context, faults: Faults) -> None:
        super().__init__(context)
        self._faults = faults
        self._failing: dict[Exchange, ErrorCode] = {}
        # Requests that wait, in their order, each with the time of the loop at which it is due.
        self._delayed: deque[tuple[float, Exchange]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def handle(self, exchange: Exchange) -> None:
        """Answer, fail or delay the request. Requests of one connection stay in their order."""
        if self._faults.crashed:
            exchange.fail("the broker has crashed")
        elif exchange.request.client_id == EXEMPT:
            super().handle(exchange)
        else:
            seconds = self._faults.delay_seconds(exchange.request.api_key)
            if seconds or self._delayed:
                self._delay(exchange, seconds)
            else:
                self._handle_now(exchange)

    def _delay(self, exchange: Exchange, seconds: float) -> None:
        """Handle the request in *seconds*, and not before those that came earlier."""
        waiting = self.context.loop.time() + seconds, exchange
        self._delayed.append(waiting)
        exchange.on_lost = lambda: self._delayed.remove(waiting)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._delayed:
            self._timer = self.context.loop.call_at(self._delayed[0][0], self._handle_due)

    def _handle_due(self) -> None:
        self._timer = None
        while self._delayed and self._delayed[0][0] <= self.context.loop.time():
            _, exchange = self._delayed.popleft()
            exchange.on_lost = None
            exchange.attempt(partial(self._handle_now, exchange))
        self._set_timer()

    def _handle_now(self, exchange: Exchange) -> None:
        request = exchange.request
        code = self._faults.take_error(request.api_key)
        if code is None:
            super().handle(exchange)
        elif request.api_key in failing.TO_MARK:
            self._failing[exchange] = code
            super().handle(exchange)
        elif request.api_key is ApiKey.PRODUCE and request.body.acks == 0:
            # There is no answer to a request with acks=0; as in Kafka, the connection is closed.
            exchange.fail(f"told to fail with {code.name}")
        else:
            exchange.answer(failing.failed_response(request, code, f"{code.name}, as the test asked for"))

    async def _answer(self, handler: Handler, exchange: Exchange) -> None:
        code = self._failing.pop(exchange, None)
        if code is None:
            await super()._answer(handler, exchange)
            return

        async def fail(context: Context, exchange: Exchange) -> object:
            body = await handler(context, exchange)
            if isinstance(body, Prepared):
                body = failing.decode_prepared(exchange.request, body.frame)
            return failing.mark_failed(exchange.request, body, code)

        await super()._answer(fail, exchange)
