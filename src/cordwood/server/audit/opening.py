"""Opening the audit log of a broker by its settings."""

from __future__ import annotations

import asyncio
import logging

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, InvalidSetting
from cordwood.host import Clock
from cordwood.server.audit.audit import Audit
from cordwood.server.internal_topic import InternalTopic, RunInThread
from cordwood.server.pipeline import Pipeline

_LOGGER = logging.getLogger("cordwood.server")


def check_audit(config: BrokerConfig) -> None:
    """Check the settings of the audit log.

    Raises:
        InvalidSetting: If records are required and there is no topic for them.
    """
    if config.audit_required and not config.audit_topic:
        expected = "false, or a topic in cordwood.audit.topic: nothing is recorded without one"
        raise InvalidSetting("cordwood.audit.required", "true", expected)


def open_audit(
    config: BrokerConfig,
    node: Node,
    pipeline: Pipeline,
    run_in_thread: RunInThread,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
) -> Audit | None:
    """Return the audit log, whose topic is created if it is missing; None if none is configured.

    Called before clients are served: it syncs.
    """
    name = config.audit_topic
    if not name:
        return None
    try:
        entry = node.topics.ensure_internal(name)
    except CordwoodError as error:
        # The first append tries again.
        _LOGGER.error("the audit topic could not be created: %s", error)
    else:
        if not node.topics.config_of(entry).chain:
            _LOGGER.warning("the audit topic %s was made without cordwood.chain: it proves nothing", name)
    topic = InternalTopic(name, node, pipeline, run_in_thread, clock.now_ms)
    audit = Audit(topic, loop, clock, node.directory.context.telemetry, required=config.audit_required)
    audit.note_broker("BrokerStart")
    return audit
