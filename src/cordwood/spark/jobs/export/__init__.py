"""The export job: its plan, its files, and the run that writes them."""

from cordwood.spark.jobs.export.job import ExportOptions, export

__all__ = [
    "ExportOptions",
    "export",
]
