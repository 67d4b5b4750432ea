"""Metrics over HTTP: lookup, text format, answers."""

from cordwood.server.metrics.answers import ServerAnswers
from cordwood.server.metrics.http import MetricsEndpoint

__all__ = [
    "MetricsEndpoint",
    "ServerAnswers",
]
