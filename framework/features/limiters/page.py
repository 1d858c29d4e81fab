"""The rate limiters: their limits, what is used, and their counts. Operators resize and reset them here."""

from collections.abc import Iterable, Mapping

from framework.admin.audit import acting_name
from framework.features.limiters.admin import LimiterState, read_limiters
from framework.features.limiters.store import reset_limiter, resize_limiter
from framework.pages.forms import MINUTES, REASON, Field, Form, lasts_s_of, number_of, reason_of
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_duration

_MOST_LIMIT = 10**9
_LIMIT = Field("value", "Limit", 0, _MOST_LIMIT)


class LimiterRows(Rows[LimiterState]):
    """The limiters in use."""

    noun = "limiter"

    def read(self, view: View, shard: Shard) -> Iterable[LimiterState]:  # noqa: ARG002 - of Rows
        """Return the limiters of a shard."""
        return read_limiters(shard.client)

    def name_of(self, one: LimiterState) -> str:
        """Return the name."""
        return one.name

    def facts(self, one: LimiterState) -> Facts:
        """Return the limit and the counts."""
        return {
            "kind": one.kind,
            "limit": one.limit,
            "declared": one.declared,
            "used": one.used,
            "interval_s": one.interval_s,
            "resized_by": one.resized_by,
            "resized_reason": one.resized_reason,
            "taken": one.taken,
            "waited": one.waited,
            "refused": one.refused,
            "reclaimed": one.reclaimed,
        }


class ResizeLimiter(RowAction[LimiterState]):
    """Let limiters have another limit for some time."""

    name = "resize"
    label = "Set limit"
    role = "admin"
    record = "limiters resize"
    rows = LimiterRows()
    fields = (_LIMIT, MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the limit, the time and the reason."""
        return {"limit": _limit(form), "lasts_s": lasts_s_of(form), "reason": reason_of(form)}

    def shown(self, at: FormAt, one: LimiterState) -> str:
        """Return the limit now, and then."""
        return Sentence(
            "{name} on {shard}: now {limit:g} ({used:g} used), then {new:,}",
            name=one.name,
            shard=at.shard.name,
            limit=one.limit,
            used=one.used,
            new=_limit(at.form),
        )

    def effect(self, form: Form) -> str:
        """Return what follows."""
        none = Sentence(" No call is admitted meanwhile.") if _limit(form) == 0 else ""
        return Sentence(
            "It holds for every process and every key at once, for {time}.{none}",
            time=format_duration(lasts_s_of(form)),
            none=none,
        )

    def change(self, at: FormAt, one: LimiterState) -> int:
        """Set the limit."""
        resize_limiter(
            at.shard.client, one.name, _limit(at.form), lasts_s_of(at.form), acting_name(), reason_of(at.form)
        )
        return 1


class UnresizeLimiter(RowAction[LimiterState]):
    """Let the limits of the code hold again."""

    name = "unresize"
    label = "Limit of the code"
    role = "admin"
    record = "limiters unresize"
    rows = LimiterRows()

    def shown(self, at: FormAt, one: LimiterState) -> str:
        """Return the limit now, and then."""
        return Sentence(
            "{name} on {shard}: now {limit:g}, then {declared:g}",
            name=one.name,
            shard=at.shard.name,
            limit=one.limit,
            declared=one.declared,
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence("The limits of the code hold again at once.")

    def change(self, at: FormAt, one: LimiterState) -> int:
        """Remove the limit of operators."""
        return int(resize_limiter(at.shard.client, one.name, None, None))


class ResetLimiter(RowAction[LimiterState]):
    """Set what is used to zero."""

    name = "reset"
    label = "Reset"
    role = "admin"
    is_harmful = True
    record = "limiters reset"
    rows = LimiterRows()

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They admit calls again, for all keys. Blocks that run go on: a concurrent limiter may exceed its limit."
        )

    def change(self, at: FormAt, one: LimiterState) -> int:
        """Remove what is used."""
        reset_limiter(at.shard.client, one.name, None)
        return 1


class LimitersPage(TablePage[LimiterState]):
    """Show the rate limiters in use."""

    name = "limiters"
    path = "/limiters"
    title = "Limiters"
    menu = "control"
    rows = LimiterRows()
    heading = "Limiter"
    columns = (
        Column("Kind", "kind", "tag"),
        Column("Used", "used", "count"),
        Column("Limit", "limit", "count"),
        Column("Of the code", "declared", "count"),
        Column("Interval", "interval_s", "duration"),
        Column("Admitted", "taken", "count"),
        Column("Had to wait", "waited", "count"),
        Column("Not at once", "refused", "count"),
        Column("Lapsed", "reclaimed", "count"),
        Column("Resized by", "resized_by"),
        Column("Reason", "resized_reason"),
    )
    about = "Rate limits that code takes with framework.limiter; used is that of calls without a key."
    empty = "No limiter is in use."
    actions = (ResizeLimiter(), UnresizeLimiter(), ResetLimiter())


def _limit(form: Form) -> int:
    return number_of(form, "value", 0, _MOST_LIMIT)
