"""Jobs that are deferred by the health of a database."""

from datetime import timedelta

from framework import ApplicationWorker, DeferOnHealth
from framework.health import Normal, Question, Signal, Stop, register

SOON = timedelta(seconds=0.3)


class Backlog:
    """Stop while the table ``backlog`` of the database has rows."""

    def evaluate(self, question: Question) -> Signal:
        ((rows,),) = question.query("SELECT count(*) FROM backlog")
        return Stop(f"{rows} rows are to be done") if rows else Normal("nothing is to be done")


class Hanging:
    def evaluate(self, question: Question) -> Signal:
        from threading import Event

        Event().wait()
        return Normal("never")


register("backlog", Backlog())
register("hanging", Hanging())


class HeedingWorker(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self, table: str = "") -> None: ...


class VacuumWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(
        delay=SOON,
        max_delay=SOON,
        indicators=("autovacuum",),
        resolver=lambda args: ("main", args),
    )


class AllWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(delay=timedelta(minutes=1), indicators=("wal_archiving", "traffic"))


class PatientWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(delay=SOON, indicators=("wal_archiving",), max_deferrals=2)


class TrafficWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(delay=SOON, max_delay=SOON, indicators=("traffic",))


class BacklogWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(delay=SOON, max_delay=SOON, indicators=("backlog",))


class HangingWorker(HeedingWorker):
    defer_on_health = DeferOnHealth(delay=SOON, indicators=("hanging",))
