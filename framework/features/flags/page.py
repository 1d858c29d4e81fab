"""The flags: those of the application, and those that drop, defer or pause jobs of a class. Operators set and clear them here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from framework.admin.audit import acting_name
from framework.features.flags.flag import Flag, check_flag_name, drop_flag, is_class_flag, run_flag
from framework.features.flags.redis_flags import MAX_AGE_S, read_flags_in_force, set_flag, unset_flag
from framework.pages.assumed import assumed_text
from framework.pages.forms import MINUTES, PERCENT, REASON, Field, Form, lasts_s_of, line, number_of, reason_of, word
from framework.pages.shard_action import ClassAction, FormAt, RowAction, ShardAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_duration

_KNOWN = Sentence("Every process knows within {age_s:g} s.", age_s=MAX_AGE_S)


class StoredFlag(NamedTuple):
    """A flag of one shard; without ``flag`` it cannot be read, and counts as not set."""

    name: str
    flag: Flag | None


class FlagRows(Rows[StoredFlag]):
    """The flags in force."""

    noun = "flag"

    def read(self, view: View, shard: Shard) -> Iterable[StoredFlag]:  # noqa: ARG002 - of Rows
        """Return the flags of a shard."""
        return [StoredFlag(name, flag) for name, flag in read_flags_in_force(shard.client)[1].items()]

    def name_of(self, one: StoredFlag) -> str:
        """Return the name of the flag."""
        return one.name

    def worker_of(self, one: StoredFlag) -> str | None:
        """Return the class of a flag of a class, ``None`` for a flag of the application."""
        return one.name.split("_jobs_", 1)[1] if is_class_flag(one.name) else None

    def facts(self, one: StoredFlag) -> Facts:
        """Return its percentage, and who set it until when."""
        flag = one.flag or Flag(
            one.name, 0, Sentence("it cannot be read, and counts as not set: set it again, or clear it")
        )
        return {
            "class": self.worker_of(one),
            "is_readable": one.flag is not None,
            "percentage": None if one.flag is None else flag.percentage,
            "reason": flag.reason,
            "set_by": flag.set_by,
            "set_at": flag.set_at,
            "expires_at": flag.expires_at,
        }


class SetFlag(ShardAction[str]):
    """Set a flag of the application on the shards that the page shows. It replaces a flag of the name."""

    name = "set"
    label = "Set flag"
    role = "admin"
    record = "flags set"
    fields = (Field("name", "Flag"), PERCENT, MINUTES, REASON)

    @property
    def noun(self) -> str:
        """Return what it sets."""
        return "flag"

    async def targets(self, view: View, form: Form) -> Mapping[str, Sequence[str]]:
        """Return the flag, on each shard where the caller may set it."""
        name = check_flag_name(word(form, "name"))
        return {shard: [name] for shard in view.shards if view.may(self.role, shard)}

    def name_of(self, one: str) -> str:
        """Return the name of the flag."""
        return one

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the percentage, the time and the reason."""
        lasts_s = lasts_s_of(form) if word(form, "minutes") else None
        return {"percentage": number_of(form, "percent", 0, 100), "lasts_s": lasts_s, "reason": line(form, "reason")}

    def shown(self, at: FormAt, one: str) -> str:
        """Return what holds now, and then."""
        _, found = read_flags_in_force(at.shard.client)
        flag = found.get(one)
        now = Sentence("not set") if flag is None else Sentence("on for {percentage:g} %", percentage=flag.percentage)
        return Sentence(
            "{one} on {shard}: now {now}, then on for {new} %",
            one=one,
            shard=at.shard.name,
            now=now,
            new=number_of(at.form, "percent", 0, 100),
        )

    def effect(self, form: Form) -> str:
        """Return for how long it holds."""
        ends = (
            Sentence("for {time}", time=format_duration(lasts_s_of(form)))
            if word(form, "minutes")
            else Sentence("until it is cleared")
        )
        return Sentence("It holds {ends}. {known} Code that asks for it decides what follows.", ends=ends, known=_KNOWN)

    def change(self, at: FormAt, one: str) -> int:
        """Set it."""
        lasts_s = lasts_s_of(at.form) if word(at.form, "minutes") else None
        flag = Flag(one, number_of(at.form, "percent", 0, 100), line(at.form, "reason"), acting_name())
        set_flag(at.shard.client, flag, lasts_s)
        return 1


class ClearFlag(RowAction[StoredFlag]):
    """Clear flags, also those of classes."""

    name = "clear"
    label = "Clear"
    role = "admin"
    record = "flags clear"
    rows = FlagRows()

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They count as not set. {known} Held jobs of a class that was paused return to their queues.", known=_KNOWN
        )

    def change(self, at: FormAt, one: StoredFlag) -> int:
        """Clear it."""
        return int(unset_flag(at.shard.client, one.name))


class FlagsPage(TablePage[StoredFlag]):
    """Show the flags that are set, by name."""

    name = "flags"
    path = "/flags"
    title = "Flags"
    menu = "control"
    mends = ("dropping", "deferring", "paused")
    of_jobs = True
    rows = FlagRows()
    heading = "Flag"
    columns = (
        Column("On for %", "percentage", "count"),
        Column("Set by", "set_by"),
        Column("Reason", "reason"),
        Column("Set", "set_at", "time"),
        Column("Ends", "expires_at", "time"),
    )
    about = "Flags of the application, and those that drop, defer and pause classes."
    empty = "No flag is set."
    actions = (ClearFlag(), SetFlag())


class DropJobs(ClassAction):
    """Drop jobs of a class when they are fetched."""

    name = "drop"
    label = "Drop jobs"
    role = "admin"
    is_harmful = True
    record = "jobs drop"
    fields = (PERCENT, MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the percentage, the time and the reason."""
        return _class_details(form)

    def shown(self, at: FormAt, one: str) -> str:
        """Return what would hold: the engine of ``jobs explain --assume`` says it."""
        return assumed_text(
            at.view, at.shard, one, {"flags": {drop_flag(one): _assumed(drop_flag(one), _percent(at.form))}}
        )

    def effect(self, form: Form) -> str:
        """Return what follows."""
        return Sentence(
            "For {time}, {percent} % of its jobs are lost when they are fetched: only the log and a counter record them. "
            "{known}",
            time=format_duration(lasts_s_of(form)),
            percent=_percent(form),
            known=_KNOWN,
        )

    def change(self, at: FormAt, one: str) -> int:
        """Set the drop flag."""
        set_flag(at.shard.client, _flag(drop_flag(one), _percent(at.form), at.form), lasts_s_of(at.form))
        return 1


class DeferJobs(ClassAction):
    """Defer jobs of a class when they are fetched."""

    name = "defer"
    label = "Defer jobs"
    role = "admin"
    record = "jobs defer"
    fields = (PERCENT, MINUTES, REASON)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the percentage, the time and the reason."""
        return _class_details(form)

    def shown(self, at: FormAt, one: str) -> str:
        """Return what would hold."""
        name = run_flag(one)
        return assumed_text(at.view, at.shard, one, {"flags": {name: _assumed(name, 100 - _percent(at.form))}})

    def effect(self, form: Form) -> str:
        """Return what follows."""
        return Sentence(
            "For {time}, {percent} % of its jobs go to the schedule when they are fetched, and try again after the "
            "setting flags.defer_delay. None is lost. {known}",
            time=format_duration(lasts_s_of(form)),
            percent=_percent(form),
            known=_KNOWN,
        )

    def change(self, at: FormAt, one: str) -> int:
        """Set the run flag."""
        set_flag(at.shard.client, _flag(run_flag(one), 100 - _percent(at.form), at.form), lasts_s_of(at.form))
        return 1


class RunJobs(ClassAction):
    """Clear the flags that drop and defer jobs of a class."""

    name = "run"
    label = "Drop and defer no more"
    role = "admin"
    record = "jobs flags clear"

    def shown(self, at: FormAt, one: str) -> str:
        """Return the flags that are set now."""
        _, found = read_flags_in_force(at.shard.client)
        flags = [name for name in (drop_flag(one), run_flag(one)) if name in found]
        return Sentence(
            "{one} on {shard}: {names}",
            one=one,
            shard=at.shard.name,
            names=", ".join(flags) or Sentence("no flag drops or defers its jobs"),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "Its jobs run again. {known} Jobs that were deferred become due in their turn, or with “Run deferred now”.",
            known=_KNOWN,
        )

    def change(self, at: FormAt, one: str) -> int:
        """Clear both flags."""
        return int(sum(unset_flag(at.shard.client, name) for name in (drop_flag(one), run_flag(one))) > 0)


def _class_details(form: Form) -> Mapping[str, object]:
    return {"percent": _percent(form), "lasts_s": lasts_s_of(form), "reason": reason_of(form)}


def _percent(form: Form) -> int:
    return number_of(form, "percent", 1, 100)


def _flag(name: str, percentage: int, form: Form) -> Flag:
    return Flag(name, percentage, reason_of(form), acting_name())


def _assumed(name: str, percentage: int) -> Flag:
    return Flag(name, percentage, "assumed")
