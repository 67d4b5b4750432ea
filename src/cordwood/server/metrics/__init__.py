"""Metrics over HTTP: lookup, text format, answers."""

from cordwood.server.metrics.answers import ServerAnswers
from cordwood.server.metrics.http import MetricsEndpoint
from cordwood.server.metrics.token import BearerToken

__all__ = [
    "BearerToken",
    "MetricsEndpoint",
    "ServerAnswers",
]
