"""The breakers of classes: those that are open, and those that count deaths. Operators open and close them here."""

from collections.abc import Iterable, Mapping
from typing import Any

from framework.admin.queue_actions import note_pause
from framework.features.breaker.store import BreakerState, close_breaker, open_breaker, read_breaker, read_breakers
from framework.pages.forms import MINUTES, REASON, Form, lasts_s_of, line, reason_of
from framework.pages.shard_action import ClassAction, FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_duration


class BreakerRows(Rows[BreakerState]):
    """The breakers that are open or count something."""

    noun = "breaker"

    def read(self, view: View, shard: Shard) -> Iterable[BreakerState]:  # noqa: ARG002 - of Rows
        """Return the breakers of a shard."""
        return read_breakers(shard.client)

    def name_of(self, one: BreakerState) -> str:
        """Return the class."""
        return one.worker

    def worker_of(self, one: BreakerState) -> str | None:
        """Return the class."""
        return one.worker

    def facts(self, one: BreakerState) -> Facts:
        """Return the state of a breaker."""
        return {
            "state": one.state,
            "cause": one.cause,
            "reason": one.reason,
            "opened_at": None if one.state == "closed" else one.opened_at,
            "probes_at": one.probes_at if one.state == "open" else None,
            "probe": one.probe,
            "opens": one.opens,
            "deaths": one.deaths,
        }


class CloseBreaker(RowAction[BreakerState]):
    """Close breakers, so that their held jobs return."""

    name = "close"
    label = "Close"
    record = "breakers close"
    rows = BreakerRows()
    fields = (REASON,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the reason."""
        return {"reason": line(form, "reason")}

    def shown(self, at: FormAt, one: BreakerState) -> str:
        """Return the state now."""
        return Sentence(
            "{worker} on {shard}: {state}{reason}",
            worker=one.worker,
            shard=at.shard.name,
            state=one.state,
            reason=(Sentence(", {reason}", reason=one.reason) if one.reason else ""),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Held jobs return to their queues within seconds, and the counts begin again. With the same cause it opens "
            "again."
        )

    def change(self, at: FormAt, one: BreakerState) -> int:
        """Close it if it is open."""
        if not close_breaker(at.shard.client, one.worker):
            return 0
        note_pause(at.shard.client, "resume", one.worker, line(at.form, "reason"))
        return 1


class OpenBreaker(ClassAction):
    """Open the breaker of a class that has one."""

    name = "open-breaker"
    label = "Open breaker"
    record = "breakers open"
    fields = (MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the time of the probe, and the reason."""
        return {"probe_after_s": lasts_s_of(form), "reason": reason_of(form)}

    def shown(self, at: FormAt, one: str) -> str:
        """Return the state now."""
        self._check(at, one)
        return Sentence(
            "{one} on {shard}: {state}", one=one, shard=at.shard.name, state=read_breaker(at.shard.client, one).state
        )

    def effect(self, form: Form) -> str:
        """Return what follows."""
        after = format_duration(lasts_s_of(form))
        return Sentence(
            "Its jobs are held. In {after} one of them runs as a probe; if it succeeds, the breaker closes.",
            after=after,
        )

    def change(self, at: FormAt, one: str) -> int:
        """Open it."""
        self._check(at, one)
        open_breaker(at.shard.client, one, reason_of(at.form), lasts_s_of(at.form))
        note_pause(at.shard.client, "pause", one, reason_of(at.form))
        return 1

    @staticmethod
    def _check(at: FormAt, one: str) -> None:
        declaration = at.view.installation.declaration(one)
        if declaration is not None and declaration.facts["break_after"] is None:
            raise ValueError(
                Sentence("{one} declares no break_after, so it has no breaker. Pause the class instead.", one=one)
            )


class BreakersPage(TablePage[BreakerState]):
    """Show the breakers, the open ones first."""

    name = "breakers"
    path = "/breakers"
    title = "Breakers"
    menu = "control"
    mends = ("breaker_open",)
    of_jobs = True
    rows = BreakerRows()
    heading = "Class"
    name_kind = "class"
    columns = (
        Column("State", "state", "tag"),
        Column("Cause", "cause"),
        Column("Reason", "reason"),
        Column("Open since", "opened_at", "time"),
        Column("Probe", "probes_at", "time"),
        Column("Job of the probe", "probe", "job"),
        Column("Opened", "opens", "count"),
        Column("Deaths", "deaths", "count"),
    )
    about = "A breaker holds the jobs of a class that fails or kills its processes, and lets one run as a probe from time to time."
    empty = "No breaker is open, and none counts anything."
    actions = (CloseBreaker(),)

    def order(self, row: Facts) -> Any:
        """Return the open ones first."""
        return row["state"] == "closed", row["name"], row["shard"]
