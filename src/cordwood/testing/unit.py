"""`KafkaTestCase`: a broker for a class of unittest, and a topic for each of its tests."""

from __future__ import annotations

import re
import unittest
from collections.abc import Mapping
from typing import ClassVar

from cordwood.testing.broker import KafkaBroker


class KafkaTestCase(unittest.TestCase):
    """A test case with ``broker``, started for the class, and ``topic``, a new topic for each test.

    ``broker_config`` holds settings of the broker, ``topic_partitions`` and ``topic_config`` those of the
    topics. After each test its topic is deleted and all faults are ended. For coroutines, put it before
    `unittest.IsolatedAsyncioTestCase`.
    """

    # pytest must not collect it where a module of tests imports it.
    __test__ = False

    broker_config: ClassVar[Mapping[str, str]] = {}
    topic_partitions: ClassVar[int] = 1
    topic_config: ClassVar[Mapping[str, str]] = {}
    broker: ClassVar[KafkaBroker]
    topic: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__test__ = True

    @classmethod
    def setUpClass(cls) -> None:
        """Start the broker."""
        super().setUpClass()
        cls.broker = KafkaBroker(config=cls.broker_config).start()
        cls.addClassCleanup(cls.broker.stop)

    def setUp(self) -> None:
        """Create the topic."""
        super().setUp()
        self.topic = re.sub(r"[^\w.-]", "-", self.id(), flags=re.ASCII)[-200:]
        self.broker.create_topic(self.topic, self.topic_partitions, self.topic_config)
        self.addCleanup(self._clean_up)

    def _clean_up(self) -> None:
        self.broker.heal()
        self.broker.delete_topic(self.topic)
