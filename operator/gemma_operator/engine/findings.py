"""What a check found: a reason to refuse, or a warning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["refuse", "warn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or unwise, in words for the person who wrote the spec."""

    id: str
    """Name of the check, CamelCase: the reason of a condition."""
    severity: Severity
    message: str
    """Field, value, what is allowed, what to do."""


class RefusedSpec(ValueError):
    """The spec can't be served by this engine; the text says which field, and what to use instead."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(dict.fromkeys(finding.message for finding in findings)))
        self.findings = findings
