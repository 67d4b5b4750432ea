"""Strangers neither fill the log nor forge lines of it."""

from __future__ import annotations

import io
import logging

import pytest
from support.clocks import ManualClock
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.protocol import ErrorCode
from cordwood.server.log_lines import LineFormatter
from cordwood.server.security.limited_log import LimitedLog

LOGGER = logging.getLogger("cordwood.test")


def test_beyond_its_lines_a_second_a_log_only_counts(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = LimitedLog(LOGGER, clock, 2)
    for number in range(5):
        log.warn(f"attempt {number}")
    clock.advance(999)
    log.warn("still the same second")
    clock.advance(1)
    log.warn("the next second")
    log.warn("its second line")
    log.warn("too many again")
    assert caplog.messages == [
        "attempt 0",
        "attempt 1",
        "the next second (4 more since the last line)",
        "its second line",
    ]


def test_no_text_of_a_client_begins_a_line_or_commands_a_terminal() -> None:
    """Whatever a message names, and in the traceback of an exception as well."""
    forged = "x\n2026-11-19 WARNING all is well\x1b[2J\u2028\x85"
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("forged")
    logger.addHandler(handler)
    logger.warning("group %s could not be stored", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logger.exception("a request failed")
    lines = written.getvalue().split("\n")
    assert lines[0] == f"WARNING group {ascii(forged)[1:-1]} could not be stored"
    assert lines[1] == "ERROR a request failed"
    assert lines[2:-1]
    assert all(line.startswith("  ") for line in lines[2:-1])
    assert all(line.isprintable() for line in lines)


def test_failed_logins_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    config = {"sasl.enabled.mechanisms": "PLAIN", "connection.failed.authentication.delay.ms": "0"}
    clock = ManualClock()
    with Broker(users={"alice": "secret"}, config=config, clock=clock) as broker:
        for _ in range(25):
            with SaslClient(broker.bootstrap) as client:
                client.shake("PLAIN")
                assert client.plain("alice", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        clock.advance(1000)
        with SaslClient(broker.bootstrap) as client:
            assert client.shake("WRONG\nforged\x1b[31m").error_code
    failed = [message for message in caplog.messages if "failed to authenticate" in message]
    assert len(failed) == 11
    assert "by WRONG\\nforged\\x1b[31m at listener" in failed[-1]
    assert failed[-1].endswith("the mechanism is not enabled (15 more since the last line)")
