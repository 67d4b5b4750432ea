"""Check a data directory, in code that shares nothing with the writer's but the specification."""

from cordwood.storage.verify.ahead import Checker, SegmentCheck, SegmentResult, run_check
from cordwood.storage.verify.directory import verify_directory
from cordwood.storage.verify.report import Finding, Progress, Severity, VerifyReport

__all__ = [
    "Checker",
    "Finding",
    "Progress",
    "SegmentCheck",
    "SegmentResult",
    "Severity",
    "VerifyReport",
    "run_check",
    "verify_directory",
]
