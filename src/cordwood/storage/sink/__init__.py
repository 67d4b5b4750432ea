"""Exactly-once batches from Spark: staging files and publishing them."""

from cordwood.storage.sink.intents import NO_INTENTS, OpenIntents, look_at_once
from cordwood.storage.sink.journal import Journal, decode_journal, journal_path, journal_paths, promised
from cordwood.storage.sink.publishing import ABANDONED_MS, Publisher
from cordwood.storage.sink.staging import Share, ShareWriter, StagedTarget, collect, query_key, share_path

__all__ = [
    "ABANDONED_MS",
    "NO_INTENTS",
    "Journal",
    "OpenIntents",
    "Publisher",
    "Share",
    "ShareWriter",
    "StagedTarget",
    "collect",
    "decode_journal",
    "journal_path",
    "journal_paths",
    "look_at_once",
    "promised",
    "query_key",
    "share_path",
]
