"""Settings of cron: the entries of ``config/schedule.yml``, and how the processes of an application share them."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from framework.cron_expression import MOST_SPREAD_S, check_cron, check_time_zone
from framework.settings import validators
from framework.settings.base import FileKey, Section, SettingsBase
from framework.typeguards import is_list, is_mapping

# Not with a dash in front: a command would read it as an option.
_ENTRY_NAME = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]{0,99}")


def _check_name(name: str) -> str:
    if _ENTRY_NAME.fullmatch(name) is None:
        raise ValueError("must be a name of letters, digits and _ . : -, at most 100 of them, without a - in front")
    return name


def _check_args(value: Any) -> Any:
    if not is_list(value):
        raise ValueError("must be a list of arguments, for example [30, 'full']")
    return value


def _check_entries(value: Any) -> Any:
    # All entries of the file are commented out.
    if value is None:
        return {}
    if not is_mapping(value):
        raise ValueError("must hold entries by name, for example {cleanup: {cron: '@daily', class: CleanupWorker}}")
    return value


class CronEntrySettings(Section):
    """One entry: the ticks, and the job that each tick pushes."""

    cron: Annotated[str, BeforeValidator(check_cron)]
    class_: Annotated[str, AfterValidator(validators.wire_name)] = Field(alias="class")
    args: Annotated[tuple[Any, ...], BeforeValidator(_check_args)] = ()
    time_zone: Annotated[str, BeforeValidator(check_time_zone)] = "UTC"
    missed: Literal["skip", "once", "all"] = "once"
    """The treatment of ticks at which no process ran or Redis did not answer."""
    overlap: Literal["run", "skip", "queue"] = "run"
    """The treatment of ticks at which the last job of the entry waits or runs: ``queue`` is one run after it."""
    enabled: bool = True
    spread: Annotated[int, validators.whole_number(0, MOST_SPREAD_S)] | None = None
    """Seconds over which the jobs of the entry are spread: it has an offset below it. ``None`` is ``cron.spread``."""


Schedule = Annotated[
    dict[Annotated[str, AfterValidator(_check_name)], CronEntrySettings], BeforeValidator(_check_entries)
]


class CronSection(Section):
    """Whether processes push the jobs of the schedule, and whose schedule it is."""

    enabled: bool = True
    """Whether a process may lead, and push the jobs of the schedule."""
    application: Annotated[str, AfterValidator(validators.identifier)] = "default"
    """Applications that share a Redis have different names here, and so their own schedules and leaders."""
    spread: Annotated[int, validators.whole_number(0, MOST_SPREAD_S)] = 0
    """Seconds over which the jobs of entries without a ``spread`` of their own are spread."""
    installation: Annotated[str, AfterValidator(validators.identifier)] = "default"
    """The name of this installation of the application: other installations have other offsets."""


class CronSettings(SettingsBase):
    """The schedule, and how it is run."""

    schedule: Annotated[Schedule, FileKey("schedule.yml")] = Field(default_factory=dict[str, CronEntrySettings])
    """The entries of cron by name."""
    cron: CronSection = CronSection()
