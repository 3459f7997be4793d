"""What tests of the doctor share."""

from __future__ import annotations

from swift_tiers.ops.commands.doctor.finding import Finding, Status


def assert_finding(finding: Finding, status: str, *words: str) -> None:
    """Assert status and words of a finding, and that what is wrong, or could be better, comes with a remedy."""
    assert finding.status == status, finding
    assert all(word in f"{finding.found} {finding.remedy}" for word in words), finding
    if finding.status in (Status.WARNING, Status.WRONG):
        assert finding.remedy
