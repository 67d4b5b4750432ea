"""Commands about evidence: checkpoints and proofs."""

from cordwood.cli.evidence.evidence import parse_key, read_text, refuting

__all__ = [
    "parse_key",
    "read_text",
    "refuting",
]
