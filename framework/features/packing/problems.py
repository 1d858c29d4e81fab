"""Find settings of packing that do not fit the others."""

from collections.abc import Iterator

from framework.errors import ConfigurationProblem
from framework.features.packing.settings import PackingSettings
from framework.route.router import LoadedWorkers
from framework.shard.shards import open_block_store
from framework.store.block_store import IN_REDIS


def packing_problems(workers: LoadedWorkers) -> Iterator[ConfigurationProblem]:
    """Yield a problem if packed jobs go to a payload store, and there is none."""
    settings = PackingSettings.of(workers.settings)
    if settings.packing_place == "payload_store" and open_block_store(workers.settings) is IN_REDIS:
        message = "payload_store needs a store for the packed jobs: set payload_offload.url, or packing_place: redis"
        yield ConfigurationProblem(settings.config_file_label("application.yml"), "packing_place", message)
