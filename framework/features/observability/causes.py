"""Say what should report the figures of a shard, when nothing does."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.observability import keys
from framework.text import Sentence, decode_escaped


class ReporterCauses(CauseReader):
    """Answer the alert about missing figures: what Redis knows of a reporter. An exporter leaves no trace there."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {"no_figures": ("FleetMetricsMissing",)}

    def causes(self) -> Iterator[Cause]:
        if self.facts.scope.alert not in self.alerts["no_figures"]:
            return
        reporter = self.facts.client.get(keys.REPORTER)
        name = decode_escaped(reporter) if isinstance(reporter, bytes) else ""
        yield Cause(
            code="no_figures",
            shard=self.facts.shard,
            cause=Sentence("Prometheus does not scrape {name}, which reports the shard, and no exporter", name=name)
            if name
            else Sentence("no exporter runs, or Prometheus does not reach it"),
            evidence=[
                Sentence("Redis answers this command"),
                Sentence(
                    "{key}: {name}",
                    key=keys.REPORTER,
                    name=name or Sentence("no worker process reports the shard (setting fleet.reporter)"),
                ),
            ],
            remedy=remedy_command("exporter", "--listen", "0.0.0.0:9168", loads_classes=True),
            effect=Sentence(
                "serves the figures of all shards; if one runs already, add its address to the targets of Prometheus"
            ),
            certainty=3.0,
        )
