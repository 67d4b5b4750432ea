"""Check a data directory, in code that shares nothing with the writer's but the specification."""

from cordwood.storage.verify.ahead import Checker, SegmentCheck, SegmentResult, run_check
from cordwood.storage.verify.checkpoints import GivenCheckpoint
from cordwood.storage.verify.directory import verify_directory
from cordwood.storage.verify.leaves import Statement, statements_of
from cordwood.storage.verify.report import Finding, Progress, Severity, VerifyReport

__all__ = [
    "Checker",
    "Finding",
    "GivenCheckpoint",
    "Progress",
    "SegmentCheck",
    "SegmentResult",
    "Severity",
    "Statement",
    "VerifyReport",
    "run_check",
    "statements_of",
    "verify_directory",
]
