"""Warn at boot of classes whose limits and locks hold on several shards, as far as rules and classes show it."""

from typing import cast

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.route.router import Router
from framework.route.split import ShardSplit, splits_by_rules
from framework.settings.model import Settings
from framework.telemetry import logs


def splits(settings: Settings, router: Router) -> list[ShardSplit]:
    """Return the splits that rules, registered classes and settings show, without asking a shard."""
    declarations = [cast("Declaration", worker.declaration()) for worker in registry.workers()]
    return list(
        splits_by_rules(router, declarations, settings.limits, source=settings.config_file_label("application.yml"))
    )


def warn_splits(settings: Settings, router: Router) -> None:
    """Warn of each class or queue whose limits and locks hold on several shards."""
    for split in splits(settings, router):
        logs.logger().warning(
            str(split), event_name="boot.split", name=split.name, holds=list(split.controls), shards=list(split.shards)
        )
