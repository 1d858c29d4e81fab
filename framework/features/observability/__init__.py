"""Define the record of observability: what other programs may read of the jobs of a process and of the fleet."""

from typing import Any

from framework.feature import Feature, Late, LateCommand, Rights

_READ_FLEET: "Late[Any]" = Late("framework.features.observability.store:READ_FLEET")

OBSERVABILITY = Feature(
    name="observability",
    rights={
        "worker": Rights(scripts=(Late("framework.features.observability.store:REPORT"),)),
        "read-only": Rights(scripts=(_READ_FLEET,), commands=("info",)),
    },
    observer=Late("framework.features.observability.observer:observer"),
    worker=Late("framework.features.observability.worker:worker_part"),
    answers=Late("framework.features.observability.answers:answers"),
    pages=(Late("framework.features.observability.page:GroupsPage"),),
    causes=Late("framework.features.observability.causes:ReporterCauses"),
    commands=(
        LateCommand(
            "exporter",
            "Serve the figures of all shards to Prometheus.",
            Late("framework.features.observability.commands:exporter"),
        ),
        LateCommand(
            "monitoring",
            "Write dashboards and alerts for an installation.",
            Late("framework.features.observability.monitoring_commands:monitoring"),
        ),
    ),
    job_commands=(
        LateCommand(
            "counters",
            "Print the figures of all shards in Prometheus' text format.",
            Late("framework.features.observability.commands:counters"),
        ),
    ),
)
