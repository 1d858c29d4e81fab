"""Settings of packing."""

from typing import Annotated, Literal, TypeAlias

from framework.settings import validators
from framework.settings.base import SettingsBase

PackingPlace: TypeAlias = Literal["redis", "payload_store"]

HELD_DEPTH = 10_000
"""The depth of held and deferred jobs without the setting: only this framework reads their keys, so no program sees a wrong size."""


class PackingSettings(SettingsBase):
    """When waiting jobs are packed."""

    packing_depth: Annotated[int, validators.whole_number(0, 1_000_000_000)] | None = None
    """How many jobs of a queue, or held or deferred jobs of a limit or a class, stay as they are; those behind them are packed, up to
    1,000 in one value. 0: none is packed. Without it 10,000 for held and deferred jobs, and no queue is packed.
    """
    packing_place: PackingPlace = "redis"
    """Where packed jobs are: in Redis, or in the store of ``payload_offload.url`` with references in Redis."""
