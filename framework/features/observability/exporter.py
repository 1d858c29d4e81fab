"""Serve the figures of all shards over HTTP: to Prometheus as text, to an autoscaler as JSON."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import parse_qs

from framework.all_settings import Settings
from framework.declare.declaration import Declaration
from framework.feature import Late
from framework.features.observability.figure_text import TEXT_TYPE, exposition
from framework.features.observability.fleet import FleetReader
from framework.features.observability.settings import ObservabilitySettings
from framework.features.observability.shard_watch import Fleet, ShardWatch, classes_by_shard
from framework.process.health_server import HealthAnswer, HealthServer, json_answer
from framework.process.worker_options import HealthAddress
from framework.route.router import Router
from framework.shard.shard import Shard

_OPEN_METRICS: "Late[Callable[..., tuple[bytes, str]]]" = Late(
    "framework.features.observability.exposition:process_text"
)


def open_fleet(
    settings: Settings,
    shards: Sequence[Shard],
    router: Router,
    declarations: Sequence[Declaration],
    *,
    of_host: bool = True,
    watch: type[ShardWatch] = ShardWatch,
) -> Fleet:
    """Return the figures of these shards. The classes decide about the targets of their queues. Opens no socket."""
    fleet = ObservabilitySettings.of(settings).fleet
    classes = classes_by_shard(router, declarations)
    return Fleet(fleet, shards, FleetReader(settings), classes, of_host=of_host, watch=watch)


class ExporterServer(HealthServer):
    """Answer ``/metrics``, ``/slots_needed?shard=NAME&group=NAME`` and ``/healthz``. A shard that is away makes none of them fail."""

    def __init__(self, fleet: Fleet, address: HealthAddress) -> None:
        self._fleet = fleet
        super().__init__(
            {"/metrics": self._metrics, "/healthz": self._health, "/slots_needed": self._all_slots}, address
        )

    def answer(self, target: str, accept: str = "") -> HealthAnswer | None:
        """Return the answer to a path with its query."""
        path, _, query = target.partition("?")
        if path == "/slots_needed" and query:
            words = {name: values[-1] for name, values in parse_qs(query).items()}
            return self._slots(words.get("shard", "main"), words.get("group"))
        return super().answer(target, accept)

    def _metrics(self, accept: str) -> HealthAnswer:
        figures = self._fleet.figures()
        if "openmetrics" in accept:
            # Without the extra `prometheus` there is only the older format, which every Prometheus reads too.
            with suppress(ImportError):
                body, content_type = _OPEN_METRICS.load()({}, "histogram", accept, figures)
                return HealthAnswer(True, body, content_type)
        return HealthAnswer(True, exposition(figures).encode(), TEXT_TYPE)

    def _health(self, _accept: str) -> HealthAnswer:
        """Say that the exporter runs. The shards have figures of their own: a restart of the exporter mends none of them."""
        return json_answer({"status": "ok"}, well=True)

    def _all_slots(self, _accept: str) -> HealthAnswer:
        found = {name: one.slots if one.error is None else None for name, one in self._fleet.answers().items()}
        return json_answer({"shards": found}, well=None not in found.values())

    def _slots(self, shard: str, group: str | None) -> HealthAnswer:
        answers = self._fleet.answers()
        if shard not in answers:
            return _refusal(f"no shard is named {shard!r}", answers)
        slots, error = answers[shard].slots, answers[shard].error
        # An autoscaler keeps its number of processes after an error, and would remove them all after a zero.
        if error is not None:
            return json_answer({"error": str(error)}, well=False)
        if group is None:
            return json_answer({"slots_needed": sum(slots.values()), "shard": shard, "groups": slots}, well=True)
        if group not in slots:
            return _refusal(f"{shard!r} has no group of queues, and no queue, named {group!r}", slots)
        return json_answer({"slots_needed": slots[group], "shard": shard, "queue_group": group}, well=True)


def _refusal(message: str, known: Mapping[str, object]) -> HealthAnswer:
    return json_answer({"error": message, "known": sorted(known)}, well=False)
