"""Read a scenario: jobs, processes, and what changes meanwhile."""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.settings.base import Section
from framework.settings.files import YamlError, read_yaml
from framework.typeguards import is_mapping

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]


class Durations(Section):
    """How long runs take: exponential around a mean, or between quantiles.

    Between two quantiles the logarithm is uniform; beyond the last one it goes on with the same slope.
    """

    mean: _Positive | None = None
    p50: _Positive | None = None
    p95: _Positive | None = None
    p99: _Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        quantiles = [one for one in (self.p50, self.p95, self.p99) if one is not None]
        if (self.mean is None) == (self.p50 is None):
            raise ValueError("give mean, or p50 with p95 and p99 if they are known")
        if self.mean is not None and quantiles:
            raise ValueError("give mean or quantiles, not both")
        if quantiles != sorted(quantiles):
            raise ValueError("the quantiles must not fall: p50 <= p95 <= p99")
        return self

    def draw(self, dice: random.Random) -> float:
        """Return the seconds of one run."""
        if self.mean is not None:
            return dice.expovariate(1 / self.mean)
        known = [(share, value) for share, value in ((0.5, self.p50), (0.95, self.p95), (0.99, self.p99)) if value]
        # Below the median: from a quarter of it.
        points = [(0.0, known[0][1] / 4), *known]
        share = dice.random()
        at = min(bisect_right([one for one, _ in points], share), len(points) - 1)
        (low, first), (high, last) = points[at - 1], points[at]
        return exp(log(first) + (log(last) - log(first)) * (share - low) / (high - low))


class Burst(Section):
    """Jobs that come at once: so many at the start, and again after each period."""

    jobs: Annotated[int, Field(ge=1)]
    every: _Positive


class JobLoad(Section):
    """The jobs of one class: how many a second come at random times, or in bursts."""

    rate: _Seconds = 0.0
    burst: Burst | None = None
    duration: _Seconds | Durations = 0.1
    """Seconds of a run: one number for all runs, or how they are spread."""
    processor: _Seconds = 0.0
    """Seconds of the interpreter's time within the duration: the threads of a process share one interpreter."""
    bytes: _Count = 400
    """Bytes of a payload."""
    failures: _Share = 0.0
    """The share of the runs that fail, and are retried."""
    tenants: Annotated[int, Field(ge=1)] = 1
    """Of a class with ``fair_by``: how many keys its jobs have. The first key has half of the jobs, the second a quarter, ..."""


class ProcessCount(Section):
    """The processes of one set: their number at the start, and the bounds within which it follows the load."""

    count: _Count = 1
    slots: Annotated[int, Field(ge=1)] | None = None
    at_least: _Count = 1
    at_most: _Count | None = None
    """Without it the number does not follow the load."""


class Autoscaling(Section):
    """How an autoscaler follows ``slots_needed``; the defaults are those of KEDA and of the manifests of ``deploy``."""

    period: _Positive = 30.0
    start: _Seconds = 20.0
    """Seconds from the decision until a new process fetches."""
    calm: _Seconds = 300.0
    """For so long fewer processes must be enough before one stops."""


class Change(Section):
    """What changes at a moment, in seconds since the start; without ``lasts`` it stays until the end."""

    at: _Seconds
    lasts: _Positive | None = None
    rate: Mapping[str, _Seconds] = Field(default_factory=dict)
    """Jobs a second by class."""
    limit: Mapping[str, int | None] = Field(default_factory=dict)
    """Concurrency limits by class."""
    count: Mapping[str, _Count] = Field(default_factory=dict)
    """Processes by set, at once: a crash, or a machine that is lost."""
    restart: Sequence[str] = ()
    """Sets that are deployed: a quarter of their processes at a time end their jobs, stop, and start anew."""
    away: Sequence[str] = ()
    """Shards that do not answer."""
    off: Sequence[str] = ()
    """Classes whose jobs do not start, as by a pause."""


class FleetScenario(Section):
    """A fleet and its load. Names of classes are wire names, those of sets as in ``deploy``: SHARD-GROUP."""

    name: str = ""
    seconds: _Positive = 600.0
    seed: int = 1
    classes: Mapping[str, JobLoad] = Field(default_factory=dict)
    processes: Mapping[str, ProcessCount] = Field(default_factory=dict)
    autoscaling: Autoscaling = Autoscaling()
    limits: Mapping[str, int | None] = Field(default_factory=dict)
    """Concurrency limits in place of the declared ones."""
    routing_rules: Sequence[Sequence[str]] | None = None
    """Rules in place of those of the installation."""
    push: Annotated[int, Field(ge=1)] = 1
    """How many jobs one call pushes: it decides what a push costs Redis."""
    processor_of_job: _Seconds = 0.0001
    """Seconds of the interpreter that each job takes beside its own code, with policies and job lines."""
    redis: _Positive = 1.0
    """How many times as slow as the measured one a Redis is."""
    changes: Sequence[Change] = ()


def read_scenario(path: Path) -> FleetScenario:
    """Return the scenario of a file.

    Raises:
        ConfigurationError: the file cannot be read, or something in it is wrong.
    """
    try:
        content: Any = read_yaml(path)
    except YamlError as error:
        raise ConfigurationError([ConfigurationProblem(str(path), "", str(error))]) from None
    if not is_mapping(content):
        message = "must hold a scenario, for example `classes: {MailJob: {rate: 10, duration: 0.2}}`"
        raise ConfigurationError([ConfigurationProblem(str(path), "", message)])
    try:
        return FleetScenario.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise ConfigurationError(
            [
                ConfigurationProblem(str(path), ".".join(map(str, one["loc"])), _message(one["type"], one["msg"]))
                for one in error.errors(include_url=False)
            ]
        ) from None


def _message(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "unknown key"
    return text.removeprefix("Value error, ").replace("Input should", "must", 1)
