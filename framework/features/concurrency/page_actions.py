"""The changes of limits that pages offer: override the limit of the application for some time, and end this."""

from collections.abc import Iterable, Mapping

from framework.admin.audit import acting_name
from framework.execute.admission import assign_free_slots
from framework.features.concurrency.admin import LimitReport, limits
from framework.features.concurrency.limit_state import LimitOverride, clear_override, read_limit_states, set_override
from framework.pages.assumed import assumed_text
from framework.pages.forms import MINUTES, REASON, Field, Form, lasts_s_of, number_of, reason_of
from framework.pages.shard_action import ClassAction, FormAt, RowAction
from framework.pages.table import Rows
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import Sentence, format_count, format_duration

_MOST = 1_000_000
_VALUE = Field("value", "Jobs at a time", -1, _MOST, hint="0: no limit, -1: no job")
_HOLDS = Sentence("It holds for all processes at once. Then the limit of the application holds again.")


class LimitRows(Rows[LimitReport]):
    """The limits of a shard."""

    noun = "limit"

    def read(self, view: View, shard: Shard) -> Iterable[LimitReport]:  # noqa: ARG002 - of Rows
        """Return the limits."""
        return limits(shard.name).by_shard[shard.name]

    def name_of(self, one: LimitReport) -> str:
        """Return the class or queue."""
        return one.name

    def worker_of(self, one: LimitReport) -> str | None:
        """Return the name: that of a queue is no class, so only the shard decides about it."""
        return one.name

    def facts(self, one: LimitReport) -> Facts:
        """Return what holds, and what waits."""
        return {
            "limit": one.limit,
            "source": one.source,
            "running": one.running,
            "is_full": one.is_full,
            "until": one.until,
            "set_by": None if one.override is None else one.override.by,
            "reason": None if one.override is None else one.override.reason,
            "waiting": 0 if one.waiting is None else one.waiting.jobs,
            "waiting_since": None if one.waiting is None else one.waiting.since,
        }


class SetLimit(RowAction[LimitReport]):
    """Override limits of the application for some time."""

    name = "set"
    label = "Set limit"
    role = "admin"
    record = "jobs limits set"
    fields = (_VALUE, MINUTES, REASON)
    rows = LimitRows()

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the limit, the time and the reason."""
        return _details(form)

    def question(self, form: Form, count: int) -> str:
        """Return what would hold."""
        return Sentence("Run {held}: {things}?", held=_held(form), things=format_count(count, self.noun))

    def shown(self, at: FormAt, one: LimitReport) -> str:
        """Return what holds now, what blocks the jobs then, and how many running jobs are above the new limit."""
        new = _value(at.form)
        above = max(one.running - max(new, 0), 0) if new else 0
        more = (
            Sentence(
                "; {jobs} above it, and no other starts before they end", jobs=format_count(above, "running job", "is")
            )
            if above
            else ""
        )
        return Sentence("{now}{more}. {assumed}", now=_now(at, one), more=more, assumed=_assumed(at, one.name))

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return for how long."""
        return _HOLDS

    def change(self, at: FormAt, one: LimitReport) -> int:
        """Set the override, and give free slots to jobs that wait."""
        return _set(at, one.name)


class ClearLimit(RowAction[LimitReport]):
    """End overrides, so that the limits of the application hold again."""

    name = "clear"
    label = "Clear override"
    role = "admin"
    record = "jobs limits clear"
    rows = LimitRows()

    def shown(self, at: FormAt, one: LimitReport) -> str:
        """Return what holds now."""
        return f"{_now(at, one)}{'' if one.override is not None else ', without an override'}"

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence("The limits of the application hold again at once.")

    def change(self, at: FormAt, one: LimitReport) -> int:
        """Remove the override, and give free slots to jobs that wait."""
        cleared = clear_override(at.shard.client, one.name)
        assign_free_slots(at.shard.client, one.name, None)
        return int(cleared)


class LimitClass(ClassAction):
    """Override the limit of a class, also of one that has none yet."""

    name = "limit"
    label = "Set limit"
    role = "admin"
    record = "jobs limits set"
    fields = (_VALUE, MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the limit, the time and the reason."""
        return _details(form)

    def question(self, form: Form, count: int) -> str:
        """Return what would hold."""
        return Sentence("Run {held}, on {shards}?", held=_held(form), shards=format_count(count, "shard"))

    def shown(self, at: FormAt, one: str) -> str:
        """Return what holds now, and what blocks the jobs then."""
        (now,) = read_limit_states(at.shard.client, server_time(at.shard.client), [one])
        return Sentence(
            "{one} on {shard}: now {usage} running. {assumed}",
            one=one,
            shard=at.shard.name,
            usage=now.usage,
            assumed=_assumed(at, one),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return for how long."""
        return _HOLDS

    def change(self, at: FormAt, one: str) -> int:
        """Set the override, and give free slots to jobs that wait."""
        return _set(at, one)


def _set(at: FormAt, name: str) -> int:
    client = at.shard.client
    until = server_time(client) + lasts_s_of(at.form)
    set_override(client, name, LimitOverride(_value(at.form), until, reason_of(at.form), acting_name()))
    assign_free_slots(client, name, None)
    return 1


def _details(form: Form) -> Mapping[str, object]:
    return {"limit": _value(form), "for": lasts_s_of(form), "reason": reason_of(form)}


def _value(form: Form) -> int:
    return number_of(form, "value", -1, _MOST)


def _held(form: Form) -> str:
    """Say what holds with the override of the form."""
    limit = _value(form)
    held = Sentence("no job") if limit < 0 else Sentence("at most {jobs} at a time", jobs=format_count(limit, "job"))
    return Sentence(
        "{limit}, for {time}",
        limit=(Sentence("without a limit") if limit == 0 else held),
        time=format_duration(lasts_s_of(form)),
    )


def _assumed(at: FormAt, name: str) -> str:
    return assumed_text(at.view, at.shard, name, {"concurrency": {name: _value(at.form)}})


def _now(at: FormAt, one: LimitReport) -> str:
    now = (
        Sentence("no limit")
        if not one.limit
        else Sentence("no job runs")
        if one.limit < 0
        else Sentence("limit {limit:,}", limit=one.limit)
    )
    waiting = 0 if one.waiting is None else one.waiting.jobs
    return Sentence(
        "{name} on {shard}: now {now}, {running:,} running, {waiting:,} waiting",
        name=one.name,
        shard=at.shard.name,
        now=now,
        running=one.running,
        waiting=waiting,
    )
