"""The stores that a log can be in: S3 and those that speak it, GCS and Azure by their URL, and memory."""

from cordwood.bucket.stores.memory import MemoryStore
from cordwood.bucket.stores.opening import TIMEOUT_MS, open_store, store_at
from cordwood.bucket.stores.remote import RemoteStore

__all__ = ["TIMEOUT_MS", "MemoryStore", "RemoteStore", "open_store", "store_at"]
