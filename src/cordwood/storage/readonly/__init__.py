"""Reading a directory beside its writer."""

from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.storage.readonly.partition import ReadOnlyPartition
from cordwood.storage.readonly.published import PublishedPartition
from cordwood.storage.readonly.shared import ReadOnlyVirtual

__all__ = [
    "PublishedPartition",
    "ReadOnlyDirectory",
    "ReadOnlyPartition",
    "ReadOnlyVirtual",
]
