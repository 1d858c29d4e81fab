"""The changes that the page of limits offers: override the limits of the application, and end this."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from framework.admin.audit import audited
from framework.execute.admission import assign_free_slots
from framework.features.concurrency.admin import LimitReport, limits
from framework.features.concurrency.limit_state import LimitOverride, clear_override, set_override
from framework.pages.page import Action, Preview
from framework.pages.view import View
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import format_count, format_duration
from framework.typeguards import short_repr

Form: TypeAlias = Mapping[str, Sequence[str]]

_SAMPLE = 8
_MOST = 1_000_000
_MOST_MINUTES = 30 * 24 * 60


@dataclass(frozen=True, slots=True)
class _Override:
    limit: int
    lasts_s: float
    reason: str

    @property
    def text(self) -> str:
        """Say what holds with it."""
        held = "no job" if self.limit < 0 else f"at most {format_count(self.limit, 'job')} at a time"
        return f"{'without a limit' if self.limit == 0 else held}, for {format_duration(self.lasts_s)}"


class LimitAction(Action):
    """An action on the limits that the form names, each as ``SHARD NAME``."""

    role = "admin"

    async def chosen(self, view: View, form: Form) -> dict[str, list[LimitReport]]:
        """Return the limits that the caller may change, by shard.

        Raises:
            ValueError: none is selected.
        """
        wanted = set(form.get("limit", ()))
        if not wanted:
            raise ValueError("No limit is selected.")
        found = await view.each(lambda shard: limits(shard).by_shard[shard], {one.partition(" ")[0] for one in wanted})
        return {
            shard: [one for one in listed if f"{shard} {one.name}" in wanted and view.may(self.role, shard, one.name)]
            for shard, listed in found.items()
        }

    async def change(
        self, view: View, form: Form, what: Mapping[str, object], step: Callable[[Shard, str], int]
    ) -> str:
        """Change each chosen limit, with a record; give its free slots to waiting jobs. Return what was done."""
        chosen = await self.chosen(view, form)

        def act(shard: str) -> tuple[int, int]:
            changed = assigned = 0
            for one in chosen[shard]:

                def named(at: Shard, name: str = one.name) -> int:
                    return step(at, name)

                run = audited(f"jobs limits {self.name}", named, {"name": one.name, **what})
                changed += run(view.shards[shard])
                assigned += assign_free_slots(view.shards[shard].client, one.name, None)[0]
            return changed, assigned

        done = await view.each(act, [shard for shard, listed in chosen.items() if listed])
        changed, assigned = (sum(one[at] for one in done.values()) for at in range(2))
        return f"{format_count(changed, 'limit')} changed; {format_count(assigned, 'waiting job')} got a free slot"


class SetLimit(LimitAction):
    """Override limits of the application for some time."""

    name = "set"
    label = "Set limit"

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the limits with what holds now, and how many running jobs are above the new limit."""
        new, chosen = _override(form), await self.chosen(view, form)
        reports = [(shard, one) for shard, listed in chosen.items() for one in listed]
        above = sum(max(one.running - max(new.limit, 0), 0) for _, one in reports) if new.limit else 0
        effect = (
            f"{format_count(above, 'running job', 'is')} above it: they go on, and no other starts before they end. "
        )
        return Preview(
            f"Run {new.text}: {format_count(len(reports), 'limit')}?",
            len(reports),
            [_shown(shard, one) for shard, one in reports[:_SAMPLE]],
            f"{effect if above else ''}It holds for all processes at once. Then the limit of the application holds again.",
        )

    async def apply(self, view: View, form: Form) -> str:
        """Set the override of each limit."""
        new = _override(form)

        def step(shard: Shard, name: str) -> int:
            until = server_time(shard.client) + new.lasts_s
            set_override(shard.client, name, LimitOverride(new.limit, until, new.reason, view.caller.name))
            return 1

        return await self.change(view, form, {"limit": new.limit, "for": new.lasts_s, "reason": new.reason}, step)


class ClearLimit(LimitAction):
    """End overrides, so that the limits of the application hold again."""

    name = "clear"
    label = "Clear override"

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the limits that have an override."""
        chosen = await self.chosen(view, form)
        there = [(shard, one) for shard, listed in chosen.items() for one in listed if one.override is not None]
        sample = [_shown(shard, one) for shard, one in there[:_SAMPLE]]
        question = f"Clear the override of {format_count(len(there), 'limit')}?"
        return Preview(question, len(there), sample, "The limits of the application hold again at once.")

    async def apply(self, view: View, form: Form) -> str:
        """Remove the override of each limit."""
        return await self.change(view, form, {}, lambda shard, name: int(clear_override(shard.client, name)))


def _override(form: Form) -> _Override:
    reason = " ".join(form.get("reason", ())).strip()
    if not reason or not reason.isprintable():
        raise ValueError("Give the reason in one line, for the next operator.")
    return _Override(_number(form, "value", -1, _MOST), _number(form, "minutes", 1, _MOST_MINUTES) * 60.0, reason)


def _number(form: Form, name: str, least: int, most: int) -> int:
    text = (form.get(name) or [""])[0]
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError(f"{name} must be a number from {least} to {most:,}, not {short_repr(text)}.")
    return number


def _shown(shard: str, one: LimitReport) -> str:
    now = "no limit" if not one.limit else "no job runs" if one.limit < 0 else f"limit {one.limit:,}"
    waiting = 0 if one.waiting is None else one.waiting.jobs
    return f"{one.name} on {shard}: now {now}, {one.running:,} running, {waiting:,} waiting"
