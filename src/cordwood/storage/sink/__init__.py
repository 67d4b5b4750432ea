"""Exactly-once batches from Spark: staging files and publishing them."""

from cordwood.storage.sink.publishing import (
    ABANDONED_MS,
    Journal,
    Publisher,
    decode_journal,
    journal_path,
    journal_paths,
    promised,
)
from cordwood.storage.sink.staging import Share, ShareWriter, StagedTarget, collect, query_key, share_path

__all__ = [
    "ABANDONED_MS",
    "Journal",
    "Publisher",
    "Share",
    "ShareWriter",
    "StagedTarget",
    "collect",
    "decode_journal",
    "journal_path",
    "journal_paths",
    "promised",
    "query_key",
    "share_path",
]
