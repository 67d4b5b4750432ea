"""Topics from and to the directories of other systems."""

from cordwood.interchange.exporting import EXPORT_SYSTEMS, ExportReport, ExportTarget, export_topic
from cordwood.interchange.importing import IMPORT_SYSTEMS, ImportReport, ImportSource, import_topic

__all__ = [
    "EXPORT_SYSTEMS",
    "IMPORT_SYSTEMS",
    "ExportReport",
    "ExportTarget",
    "ImportReport",
    "ImportSource",
    "export_topic",
    "import_topic",
]
