"""Topics from and to the directories of other systems."""

from cordwood.interchange.exporting import (
    EXPORT_SYSTEMS,
    ExportReport,
    ExportTarget,
    export_topic,
    export_topics,
)
from cordwood.interchange.frames import GAP_MAX, empty_frames
from cordwood.interchange.importing import (
    IMPORT_SYSTEMS,
    ImportReport,
    ImportSource,
    import_shared_topics,
    import_topic,
)

__all__ = [
    "EXPORT_SYSTEMS",
    "GAP_MAX",
    "IMPORT_SYSTEMS",
    "ExportReport",
    "ExportTarget",
    "ImportReport",
    "ImportSource",
    "empty_frames",
    "export_topic",
    "export_topics",
    "import_shared_topics",
    "import_topic",
]
