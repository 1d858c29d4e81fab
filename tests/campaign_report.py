"""Write the report of the campaigns that a test run had: what, how many, with which seed, and which promises broke.

``var/campaigns/report.json`` is of the last run, by ``scripts/test --campaigns`` or by the name of a test. A campaign tells how many
jobs or cases it had, and its seed, by pytest's ``record_property``. The promises of a campaign are its marks ``proves``: rows of
the reliability page.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
REPORT = Path("var") / "campaigns" / "report.json"
_PROMISES = "promises"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the reports of a campaign carry its promises, also from a process of xdist."""
    if item.get_closest_marker("campaign"):
        rows = [row for mark in item.iter_markers("proves") for row in mark.args]
        item.user_properties.append((_PROMISES, rows))


class CampaignReport:
    """Collect the ends of campaigns, and write them when the run has ended."""

    def __init__(self, file: Path, started_at: float) -> None:
        self._file = file
        self._started_at = started_at
        self._campaigns: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a step of a campaign: it has failed if its set-up or its end has."""
        properties = dict(report.user_properties)
        if _PROMISES not in properties:
            return
        promises = properties.pop(_PROMISES)
        one = self._campaigns.setdefault(
            report.nodeid, {"outcome": "passed", "seconds": 0.0, _PROMISES: promises, "figures": {}}
        )
        one["seconds"] = round(one["seconds"] + report.duration, 1)
        one["figures"] |= properties
        if report.outcome != "passed" and one["outcome"] != "failed":
            one["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write the report, if there was a campaign."""
        if not self._campaigns:
            return
        failed = [one for one in self._campaigns.values() if one["outcome"] == "failed"]
        rows = sorted({row for one in failed for row in one[_PROMISES]})
        outcomes = [one["outcome"] for one in self._campaigns.values()]
        summary = {
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started_at)),
            "seconds": round(time.time() - self._started_at, 1),
            "campaigns": {word: outcomes.count(word) for word in ("passed", "failed", "skipped")},
            "broken_promises": {row: promise_of(row) for row in rows},
            "what": self._campaigns,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(summary, indent=2) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the file of the report."""
        if self._campaigns:
            terminalreporter.write_line(f"report of {len(self._campaigns)} campaigns: {self._file}")


def promise_of(row: str) -> str:
    """Return the text of a row of the reliability page."""
    tables = yaml.safe_load((ROOT / "tests" / "proofs" / "matrix.yml").read_text())
    texts = {name: next(iter(cells.values())) for table in tables.values() for name, cells in table.items()}
    return texts.get(row, "")


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that hears of all ends: not in those of xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CampaignReport(config.rootpath / REPORT, time.time()), "campaign-report")
