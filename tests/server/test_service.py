"""Which handlers are coroutines: all but those of the two requests that carry data."""

from __future__ import annotations

import inspect

from cordwood.protocol import ApiKey
from cordwood.server.service import COLD, HANDLERS, HOT


def test_only_handlers_of_requests_with_data_call_back() -> None:
    assert set(HOT) == {ApiKey.PRODUCE, ApiKey.FETCH}
    assert not set(HOT) & set(COLD)
    assert len(HANDLERS) == len(HOT) + len(COLD)
    # Which APIs there are is an argument of this one's handler.
    named = {key: handler for key, handler in COLD.items() if key is not ApiKey.API_VERSIONS}
    assert all(inspect.iscoroutinefunction(handler) for handler in named.values())
    assert not any(inspect.iscoroutinefunction(handler) for handler in HOT.values())
