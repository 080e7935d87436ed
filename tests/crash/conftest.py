"""Says at the end how many crashes were played."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.testing.crash import CrashReport

REPORTS = pytest.StashKey[list[CrashReport]]()


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[[str, CrashReport], None]:
    """Prints what a scenario's crash points came to, and counts it."""

    def count(scenario: str, report: CrashReport) -> None:
        request.config.stash.setdefault(REPORTS, []).append(report)
        with capsys.disabled():
            print(f"\n{scenario}: {report}")

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The whole matrix, in one line."""
    reports = config.stash.get(REPORTS, [])
    if reports:
        runs = sum(report.runs for report in reports)
        terminalreporter.write_line(f"crash matrix: {runs} points run in {len(reports)} scenarios, all held")
