"""The service of a connection that authenticates by SASL: nothing is served before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from cordwood.errors import UnsupportedVersion
from cordwood.protocol import ApiKey, ErrorCode
from cordwood.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from cordwood.security import (
    ANONYMOUS,
    Authenticated,
    Challenge,
    Completed,
    Computation,
    HandshakeAnswer,
    NotAuthenticated,
    OutOfOrder,
    Principal,
    Refused,
    Reply,
)
from cordwood.server.connections import RAW_VERSION, Exchange, OwedMs, RawToken, RequestService
from cordwood.server.security.authentication import Authentication, AuthenticationResult


class AdmittedClient(NamedTuple):
    """What serves the client of a principal, and the debts of its quota; see `Connection`."""

    service: RequestService
    owed_ms: OwedMs


class PrincipalService:
    """The service of a connection whose client is known by its certificate before its first request."""

    def __init__(self, anonymous: RequestService, admit: Callable[[Principal], AdmittedClient]) -> None:
        """Begin. *anonymous* serves a client without a certificate, *admit* is as for `SaslService`."""
        self._anonymous = anonymous
        self._admit = admit
        self._service: RequestService | None = None

    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""
        if self._service is None:
            self._service = self._anonymous
            if exchange.principal != ANONYMOUS:
                try:
                    admitted = self._admit(exchange.principal)
                except ValueError:
                    exchange.fail("the tenant rules give the principal of the client no org")
                    return
                self._service = admitted.service
                exchange.authenticate(exchange.principal, admitted.owed_ms)
        self._service.handle(exchange)


class ComputationWorkers(Protocol):
    """Threads for steps that take milliseconds."""

    def run(self, exchange: Exchange, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run *call* in a thread, then *then* with its result on the loop."""


class SaslService:
    """Authenticates the client of one connection, then passes its requests on. On the loop."""

    def __init__(
        self,
        authentication: Authentication,
        listener: str,
        versions: RequestService,
        admit: Callable[[Principal], AdmittedClient],
        workers: ComputationWorkers,
        waiting_workers: ComputationWorkers,
    ) -> None:
        """Begin with a client that nobody knows.

        *versions* answers its ApiVersions requests. *admit* is called with its principal once it is known; it
        raises ValueError for one that may not be served. *waiting_workers* run computations that wait for
        another machine, so that others do not wait for them.
        """
        self._authentication = authentication
        self._listener = listener
        self._versions = versions
        self._admit = admit
        self._workers = workers
        self._waiting_workers = waiting_workers
        self._session = authentication.new_session(listener)
        self._mechanism = ""
        # Whether the failure of the exchange is noted.
        self._failed = False
        self._admission: AdmittedClient | None = None

    def handle(self, exchange: Exchange) -> None:
        """Answer the request, now or later."""
        api_key = exchange.request.api_key
        if api_key is ApiKey.SASL_HANDSHAKE:
            self._handshake(exchange)
        elif api_key is ApiKey.SASL_AUTHENTICATE:
            self._receive(exchange)
        elif self._session.is_authenticated and self._admission is not None:
            ends_ns = self._session.ends_ns
            if ends_ns is not None and self._authentication.clock.monotonic_ns() >= ends_ns:
                self._authentication.note_expired()
                exchange.fail("the session of the client is over")
            else:
                self._admission.service.handle(exchange)
        elif api_key is ApiKey.API_VERSIONS and self._may_ask_versions(exchange):
            self._versions.handle(exchange)
        else:
            exchange.fail("a request of a client that has not authenticated")

    def _may_ask_versions(self, exchange: Exchange) -> bool:
        # One of an unsupported version is answered with the supported ones, and repeated in one of them.
        return isinstance(exchange.request.body, UnsupportedVersion) or self._session.ask_versions()

    # --- the handshake ----------------------------------------------------------------------------

    def _handshake(self, exchange: Exchange) -> None:
        mechanism: str = exchange.request.body.mechanism
        enabled = self._authentication.mechanisms_of(self._listener)
        match self._session.handshake(mechanism, self._authentication.clock.monotonic_ns()):
            case HandshakeAnswer.ACCEPTED:
                if not exchange.begin():
                    return
                self._mechanism = mechanism
                self._failed = False
                if exchange.request.api_version == 0:
                    exchange.take_token()
                exchange.answer(SaslHandshakeResponse(mechanisms=enabled))
            case HandshakeAnswer.UNSUPPORTED_MECHANISM:
                code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
                answer = SaslHandshakeResponse(error_code=code, mechanisms=enabled)
                self._note(exchange, mechanism[:20], None, code, "the mechanism is not enabled")
                self._end(exchange, answer)
            case HandshakeAnswer.TOO_SOON:
                exchange.answer(
                    SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=enabled)
                )
            case HandshakeAnswer.OUT_OF_ORDER:
                exchange.fail("a SASL handshake out of order")

    # --- tokens -----------------------------------------------------------------------------------

    def _receive(self, exchange: Exchange) -> None:
        request = exchange.request
        token: bytes = request.body if request.api_version == RAW_VERSION else request.body.auth_bytes
        # The frame takes no memory while the token is checked and while a refusal is delayed.
        token, request.body = bytes(token), None
        step = self._session.receive(token)
        del token
        match step:
            case OutOfOrder(reason):
                exchange.fail(reason)
            case Computation(compute, waits):
                workers = self._waiting_workers if waits else self._workers
                workers.run(exchange, compute, lambda found: self._conclude(exchange, found))
            case _:
                self._conclude(exchange, step)

    def _conclude(self, exchange: Exchange, step: Challenge | Completed | Refused) -> None:
        clock = self._authentication.clock
        outcome = self._session.conclude(step, clock.now_ms(), clock.monotonic_ns())
        match outcome:
            case Reply(token, failed):
                if failed is not None:
                    # Now: the client may be gone before it has acknowledged the refusal.
                    self._note_failed(exchange, failed)
                self._reply(exchange, token, 0)
            case Authenticated():
                self._enter(exchange, outcome)
            case NotAuthenticated():
                self._note_failed(exchange, outcome)
                self._end(exchange, _refusal(exchange, outcome.message))

    def _enter(self, exchange: Exchange, outcome: Authenticated) -> None:
        """Serve the client as its principal. Authenticating again changes nothing but the session's end."""
        name = outcome.principal.name
        if self._admission is None:
            try:
                self._admission = self._admit(outcome.principal)
            except ValueError:
                code = ErrorCode.SASL_AUTHENTICATION_FAILED
                self._note(exchange, outcome.mechanism, name, code, "the tenant rules give it no org")
                message = "Authentication failed: the principal belongs to no tenant"
                self._end(exchange, _refusal(exchange, message))
                return
            exchange.authenticate(outcome.principal, self._admission.owed_ms)
        self._note(exchange, outcome.mechanism, name, ErrorCode.NONE, again=outcome.again)
        self._reply(exchange, outcome.token, outcome.lifetime_ms)

    def _reply(self, exchange: Exchange, token: bytes, lifetime_ms: int) -> None:
        if exchange.request.api_version != RAW_VERSION:
            exchange.answer(SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms))
            return
        if not self._session.is_authenticated:
            exchange.take_token()
        exchange.answer(RawToken(token))

    # --- failures ---------------------------------------------------------------------------------

    def _note_failed(self, exchange: Exchange, failed: NotAuthenticated) -> None:
        """Note a failure once for each handshake."""
        if not self._failed:
            self._failed = True
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            self._note(exchange, failed.mechanism, failed.name, code, failed.reason, again=failed.again)

    def _note(
        self,
        exchange: Exchange,
        mechanism: str,
        name: str | None,
        code: ErrorCode,
        reason: str = "",
        *,
        again: bool = False,
    ) -> None:
        peer = exchange.peer.removeprefix("/")
        request = exchange.request
        self._authentication.note(
            AuthenticationResult(
                peer,
                self._listener,
                mechanism,
                name,
                code,
                reason,
                again,
                request.client_id,
                request.api_key,
            )
        )

    def _end(self, exchange: Exchange, answer: Any) -> None:
        """Answer after the delay for failures and close the connection; None closes it without an answer."""

        def end() -> None:
            if answer is None:
                exchange.fail("the client failed to authenticate")
            else:
                exchange.answer_last(answer)

        asyncio.get_running_loop().call_later(self._authentication.delay_ms / 1000, end)


def _refusal(exchange: Exchange, message: str) -> SaslAuthenticateResponse | None:
    """Return the answer to a client that failed; None if its tokens come without requests around them."""
    if exchange.request.api_version == RAW_VERSION:
        return None
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    return SaslAuthenticateResponse(error_code=code, error_message=message)
