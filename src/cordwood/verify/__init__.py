"""Check a data directory, in code that shares nothing with the writer's but the specification."""

from cordwood.verify.ahead import Checker, SegmentCheck, SegmentResult, run_check
from cordwood.verify.chain import GivenCheckpoint, LeafStatement, statements_of
from cordwood.verify.directory import verify_directory
from cordwood.verify.frame import BatchFrames, FileWindows, PlacedHeader
from cordwood.verify.report import Finding, Severity, Tally, VerifyProgress, VerifyReport
from cordwood.verify.slices import ReadFrame, SliceCompare, WithoutLeaf

__all__ = [
    "BatchFrames",
    "Checker",
    "FileWindows",
    "Finding",
    "GivenCheckpoint",
    "LeafStatement",
    "PlacedHeader",
    "ReadFrame",
    "SegmentCheck",
    "SegmentResult",
    "Severity",
    "SliceCompare",
    "Tally",
    "VerifyProgress",
    "VerifyReport",
    "WithoutLeaf",
    "run_check",
    "statements_of",
    "verify_directory",
]
