"""Test that the page of metrics has the catalogue of processes. ``python -m tests.docs.test_metrics_page`` writes it."""

import re
from collections.abc import Iterable
from pathlib import Path

from framework.features.observability.catalogue import BASE, PROCESS, SLI, STATUS, Metric

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "metrics.md"
_TABLE = re.compile(r"(<!-- metrics: process (\w+) -->\n).*?(<!-- /metrics -->)", re.DOTALL)
_SHORT = {(*BASE, STATUS): "base, `job_status`", BASE: "base", SLI: "SLI"}


def rows_of(metrics: Iterable[Metric]) -> str:
    rows = [f"| `{one.name}` | {kind_of(one)} | {labels_of(one)} | {one.help} |" for one in metrics]
    return "\n".join(["| Metric | Type | Labels | Meaning |", "|---|---|---|---|", *rows, ""])


def kind_of(metric: Metric) -> str:
    buckets = f" {', '.join(f'{one:g}' for one in metric.buckets)}" if metric.buckets else ""
    mode = "" if metric.mode is None else f" (mode `{metric.mode}`)"
    return f"{metric.kind}{buckets}{mode}"


def labels_of(metric: Metric) -> str:
    labels = metric.labels
    for known, word in _SHORT.items():
        if labels[: len(known)] == known:
            return ", ".join([word, *(f"`{one}`" for one in labels[len(known) :])])
    return ", ".join(f"`{one}`" for one in labels)


def page_of_today() -> str:
    def table(found: re.Match[str]) -> str:
        origin = {"gitlab": "GitLab", "ours": "ours"}[found[2]]
        return f"{found[1]}{rows_of(one for one in PROCESS if one.origin == origin)}{found[3]}"

    return _TABLE.sub(table, PAGE.read_text())


def test_page_of_metrics_has_the_tables_of_the_catalogue() -> None:
    assert PAGE.read_text() == page_of_today()
    assert [found[1] for found in _TABLE.findall(PAGE.read_text())] == ["gitlab", "ours"]


if __name__ == "__main__":
    PAGE.write_text(page_of_today())
