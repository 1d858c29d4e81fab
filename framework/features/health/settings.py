"""Settings of health: the port of health checks; for ``defer_on_health``, when each indicator says stop."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from framework.settings import validators
from framework.settings.base import Section
from framework.settings.model import HealthPortSection, HealthPortSettings

POSTGRES_INDICATORS = ("autovacuum", "wal_archiving", "replication_lag", "connections")
"""The indicators that PostgreSQL answers itself. Configured and registered indicators may not have these names."""

_DAY_S = 86_400.0
_EXBIBYTE = 1 << 60


class WalArchivingSettings(Section):
    """Stop while more segments of the write-ahead log than ``above`` wait for archiving (GitLab's 42)."""

    above: Annotated[int, validators.whole_number(0, 1_000_000_000)] = 42


def _optional_number(low: float, high: float) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else validators.parse_number(value, low, high))


class ReplicationLagSettings(Section):
    """Stop while a replica's replay is further behind than either limit; null switches one off."""

    above_s: Annotated[float | None, _optional_number(0, 30 * _DAY_S)] = 60
    above_bytes: Annotated[float | None, _optional_number(0, _EXBIBYTE)] = 1 << 30


class ConnectionsSettings(Section):
    """Stop while a larger share of ``max_connections`` than ``above`` is in use."""

    above: Annotated[float, validators.bounded_number(0, 1)] = 0.9


class PrometheusSettings(Section):
    """The HTTP API of Prometheus; the URL may have user and password."""

    url: str = Field(repr=False)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            whole = (
                whole and not (parts.query or parts.fragment) and url.isascii() and url.isprintable() and " " not in url
            )
        except ValueError:
            whole = False
        if not whole:
            raise ValueError(
                "must be the URL of Prometheus without its path /api/v1, for example http://127.0.0.1:9090"
            )
        return url.rstrip("/")


def _check_query(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a query in PromQL")
    return value.strip()


class PrometheusIndicatorSettings(Section):
    """Stop while the query's value is ``above`` or ``below`` a threshold; of several series one is enough."""

    query: Annotated[str, BeforeValidator(_check_query)]
    above: Annotated[float | None, _optional_number(-1e300, 1e300)] = None
    below: Annotated[float | None, _optional_number(-1e300, 1e300)] = None
    database: Annotated[str, AfterValidator(validators.identifier)] | None = None
    """The database that the indicator is about: it is not asked for others. Without it: for each database."""

    @model_validator(mode="after")
    def _check_direction(self) -> "PrometheusIndicatorSettings":
        if (self.above is None) == (self.below is None):
            raise ValueError("needs one of above and below: the value beyond which jobs wait")
        return self


def _check_indicator_name(name: str) -> str:
    if name in POSTGRES_INDICATORS:
        raise ValueError("is already the name of another indicator")
    return validators.identifier(name)


class HealthSection(HealthPortSection):
    """The port for health checks of processes, and how the health of databases is judged (``defer_on_health``)."""

    cache: Annotated[float, validators.bounded_number(0, 3_600)] = 5
    """Seconds for which a process uses an answer."""
    timeout: Annotated[float, validators.bounded_number(0.01, 60)] = 1
    """Seconds in which an indicator has to answer. Later it counts as unknown, and stops nothing."""
    wal_archiving: WalArchivingSettings = WalArchivingSettings()
    replication_lag: ReplicationLagSettings = ReplicationLagSettings()
    connections: ConnectionsSettings = ConnectionsSettings()
    prometheus: PrometheusSettings | None = None
    indicators: dict[Annotated[str, AfterValidator(_check_indicator_name)], PrometheusIndicatorSettings] = Field(
        default_factory=dict[str, PrometheusIndicatorSettings]
    )
    """Queries to Prometheus, each an indicator of that name."""

    @model_validator(mode="after")
    def _check_server(self) -> "HealthSection":
        if self.indicators and self.prometheus is None:
            raise ValueError("indicators are queries to Prometheus: prometheus: {url: ...} is missing")
        return self


class HealthSettings(HealthPortSettings):
    """The health of processes and of databases."""

    # Settings are frozen, so a section with more fields takes the place of the core's.
    health: HealthSection = HealthSection()  # pyright: ignore[reportIncompatibleVariableOverride]
