"""What is raised when something signed or proven does not hold."""

from __future__ import annotations

from cordwood.errors import EvidenceRefused, SigningUnavailable

__all__ = ["EvidenceRefused", "SigningUnavailable"]
