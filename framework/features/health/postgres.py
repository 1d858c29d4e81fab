"""Health indicators from PostgreSQL itself. Each runs one statement on catalogs and statistics views, and reads no table."""

from collections.abc import Callable
from typing import Final

from framework.features.health.indicator import Normal, NotAvailable, Question, Signal, Stop, Unknown
from framework.features.health.settings import (
    ConnectionsSettings,
    HealthSection,
    ReplicationLagSettings,
    WalArchivingSettings,
)

_MAX_NAMES = 5
_NOT_PERMITTED: Final = "this role cannot see the activity of other roles: run GRANT pg_read_all_stats TO with its name"


class Autovacuum:
    """Stop while autovacuum vacuums one of the tables, a partition of one, or the TOAST table of either.

    ``on_unknown_table(database, table)`` is called for a table that does not exist; it stops nothing.
    """

    # Names are resolved as in a session, but exactly: an unquoted "Orders" would be orders to PostgreSQL.
    _STATEMENT: Final = """
        WITH listed AS (
            SELECT name, CASE WHEN cardinality(parts) <= 2 THEN to_regclass(
                (SELECT string_agg(quote_ident(part), '.' ORDER BY place) FROM unnest(parts) WITH ORDINALITY p (part, place))
            ) END AS oid
            FROM (SELECT name, string_to_array(name, '.') AS parts FROM unnest(%(tables)s::text[]) AS name) AS names
        ), leaves AS (
            SELECT name, oid::oid FROM listed WHERE oid IS NOT NULL
            UNION SELECT name, tree.relid::oid FROM listed, pg_partition_tree(listed.oid) AS tree WHERE oid IS NOT NULL
        ), watched AS (
            SELECT name, oid FROM leaves
            UNION SELECT name, reltoastrelid FROM leaves JOIN pg_class USING (oid) WHERE reltoastrelid <> 0
        )
        SELECT
            pg_has_role(current_user, 'pg_read_all_stats', 'usage'),
            (SELECT array_agg(name) FROM listed WHERE oid IS NULL),
            (SELECT array_agg(DISTINCT name)
             FROM watched JOIN pg_stat_progress_vacuum AS vacuum ON vacuum.relid = watched.oid JOIN pg_stat_activity USING (pid)
             WHERE vacuum.datname = current_database() AND backend_type = 'autovacuum worker')
    """

    def __init__(self, on_unknown_table: Callable[[str, str], None]) -> None:
        self._on_unknown_table = on_unknown_table

    def evaluate(self, question: Question) -> Signal:
        if not question.tables:
            return NotAvailable("no tables are listed")
        ((permitted, unknown, vacuumed),) = question.query(self._STATEMENT, {"tables": list(question.tables)})
        for table in unknown or ():
            self._on_unknown_table(question.database, table)
        if vacuumed:
            return Stop(f"autovacuum runs on {_list_names(vacuumed)}")
        if unknown and len(unknown) == len(question.tables):
            return NotAvailable(f"there is no table {_list_names(unknown)}")
        return Normal("autovacuum runs on none of the tables") if permitted else Unknown(_NOT_PERMITTED)


class WalArchiving:
    """Stop while more WAL segments than ``above`` lie between the current one and the last archived one.

    A server that has archived none yet, or none since its statistics were reset, counts as having archived all before
    the one that failed.
    """

    # A segment's name contains its number: 8 hex digits timeline, 8 log, 8 segment; a log holds 4 GiB of segments.
    _STATEMENT: Final = """
        WITH facts AS (
            SELECT pg_is_in_recovery() AS is_replica, current_setting('archive_mode') AS mode,
                4294967296 / (SELECT setting::bigint * CASE unit WHEN 'MB' THEN 1048576 WHEN 'kB' THEN 1024 ELSE 1 END
                              FROM pg_settings WHERE name = 'wal_segment_size') AS per_log
        ), names AS (
            SELECT CASE WHEN is_replica THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END AS current,
                substring(last_archived_wal from '^[0-9A-F]{24}') AS archived,
                substring(last_failed_wal from '^[0-9A-F]{24}') AS failed
            FROM facts, pg_stat_archiver
        ), numbers AS (
            SELECT file, ('x' || substr(file, 9, 8))::bit(32)::bigint * per_log
                + ('x' || substr(file, 17, 8))::bit(32)::bigint AS number
            FROM facts, names, LATERAL (VALUES (current), (archived), (failed)) AS files (file) WHERE file IS NOT NULL
        )
        SELECT is_replica, mode, (SELECT number FROM numbers WHERE file = current LIMIT 1)
            - coalesce((SELECT number FROM numbers WHERE file = archived LIMIT 1),
                       (SELECT number - 1 FROM numbers WHERE file = failed LIMIT 1))
        FROM facts, names
    """

    def __init__(self, settings: WalArchivingSettings) -> None:
        self._above = settings.above

    def evaluate(self, question: Question) -> Signal:
        ((is_replica, mode, waiting),) = question.query(self._STATEMENT, {})
        if is_replica:
            return NotAvailable("this server is a replica; its primary archives")
        if mode == "off":
            return NotAvailable("archive_mode is off")
        if waiting is None:
            return NotAvailable("no segment has been archived yet")
        found = f"{waiting} WAL segments wait for archiving"
        return Stop(f"{found}, more than {self._above}") if waiting > self._above else Normal(found)


class ReplicationLag:
    """Stop while the replay of a replica that streams from the primary lags by more seconds or bytes than allowed."""

    _STATEMENT: Final = """
        SELECT pg_is_in_recovery(), pg_has_role(current_user, 'pg_read_all_stats', 'usage'),
            count(replay_lsn), max(extract(epoch FROM replay_lag))::float8,
            max(CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) END)::float8
        FROM pg_stat_replication WHERE state = 'streaming'
    """

    def __init__(self, settings: ReplicationLagSettings) -> None:
        self._above_s = settings.above_s
        self._above_bytes = settings.above_bytes

    def evaluate(self, question: Question) -> Signal:
        if self._above_s is None and self._above_bytes is None:
            return NotAvailable("both thresholds are null")
        ((is_replica, permitted, replicas, seconds, size),) = question.query(self._STATEMENT, {})
        if is_replica:
            return NotAvailable("this server is a replica; only its primary reports the lag")
        if not permitted:
            return Unknown(_NOT_PERMITTED)
        if not replicas:
            return NotAvailable("no replica streams from this server")
        # The lag in seconds is null while no data is on its way.
        behind_s, behind_bytes = seconds or 0.0, size or 0.0
        found = f"the slowest of {replicas} replicas is {behind_s:.1f} s and {behind_bytes:,.0f} bytes behind"
        if self._above_s is not None and behind_s > self._above_s:
            return Stop(f"{found}, more than {self._above_s:g} s")
        if self._above_bytes is not None and behind_bytes > self._above_bytes:
            return Stop(f"{found}, more than {self._above_bytes:,.0f} bytes")
        return Normal(found)


class Connections:
    """Stop while clients hold a larger share of ``max_connections`` than ``above``."""

    # Without the right to see a session's kind, its database is still visible; the server's background processes have
    # none.
    _STATEMENT: Final = """
        SELECT count(*) FILTER (WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'),
            current_setting('max_connections')::int
        FROM pg_stat_activity
    """

    def __init__(self, settings: ConnectionsSettings) -> None:
        self._above = settings.above

    def evaluate(self, question: Question) -> Signal:
        ((used, most),) = question.query(self._STATEMENT, {})
        found = f"{used} of {most} connections are in use"
        return Stop(f"{found}, more than {self._above:.0%}") if used > most * self._above else Normal(found)


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(sorted(names)[:_MAX_NAMES]) + more


def postgres_indicators(
    settings: HealthSection, on_unknown_table: Callable[[str, str], None]
) -> dict[str, Autovacuum | WalArchiving | ReplicationLag | Connections]:
    return {
        "autovacuum": Autovacuum(on_unknown_table),
        "wal_archiving": WalArchiving(settings.wal_archiving),
        "replication_lag": ReplicationLag(settings.replication_lag),
        "connections": Connections(settings.connections),
    }
