"""Actions on things of the shards: on rows of a page's table, or on the class of its path. Each is previewed and recorded."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from framework.admin.audit import audited
from framework.errors import JobRefusedError
from framework.pages.forms import Form, word
from framework.pages.page import Action, Preview
from framework.pages.table import Rows
from framework.pages.view import View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count, joined

T = TypeVar("T")

SAMPLE = 8
"""The things that a preview names."""


class FormAt(NamedTuple):
    """A form with one of the shards on which it acts."""

    form: Form
    shard: Shard
    view: View


_SHOWN_REASONS = 3


class _Outcome(NamedTuple):
    """What became of the things of one shard."""

    changes: int
    gone: int
    refused: Sequence[str]
    """Why others stay as they are."""


class ShardAction(Action, Generic[T]):
    """An action on things of the shards, with a record on each shard: what, how many, by whom, from where."""

    record: ClassVar[str]
    """Its name in the audit log, that of the command that does the same: ``jobs locks delete``."""

    @property
    @abstractmethod
    def noun(self) -> str:
        """Return what one of the things is called: ``lock``."""

    @abstractmethod
    async def targets(self, view: View, form: Form) -> Mapping[str, Sequence[T]]:
        """Return the things on which it acts, by shard: those on which the caller may.

        Raises:
            ValueError: the form names none.
        """

    @abstractmethod
    def name_of(self, one: T) -> str:
        """Return the name of a thing, unique on its shard."""

    def details(self, form: Form) -> Mapping[str, object]:  # noqa: ARG002 - for subclasses
        """Return what else the audit log shows.

        Raises:
            ValueError: the form is not complete.
        """
        return {}

    def question(self, form: Form, count: int) -> str:  # noqa: ARG002 - for subclasses
        """Return what is asked."""
        return Sentence("{label}: {things}?", label=Sentence(self.label), things=format_count(count, self.noun))

    def shown(self, at: FormAt, one: T) -> str:
        """Return one line about a thing as it is now, and as it would be. It may read the shard."""
        return Sentence("{name} on {shard}", name=self.name_of(one), shard=at.shard.name)

    @abstractmethod
    def effect(self, form: Form) -> str:
        """Return what follows, in one or two sentences."""

    @abstractmethod
    def change(self, at: FormAt, one: T) -> int:
        """Change one thing, and return the number of changes: 0 if it was gone, or is another by now.

        Raises:
            JobRefusedError: it cannot be changed; the others are.
            FrameworkError, ValueError: none can be changed.
        """

    def done(self, count: int) -> str:
        """Return what was done."""
        return Sentence("{label}: {things} changed", label=Sentence(self.label), things=format_count(count, self.noun))

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the things with what holds of them now."""
        self.details(form)
        found = await self.targets(view, form)
        count = sum(map(len, found.values()))
        shown = await view.each(
            lambda name: [self.shown(FormAt(form, view.shards[name], view), one) for one in found[name][:SAMPLE]],
            [name for name, things in found.items() if things],
        )
        sample = [text for texts in shown.values() for text in texts]
        return Preview(self.question(form, count), count, sample[:SAMPLE], self.effect(form))

    async def apply(self, view: View, form: Form) -> str:
        """Change each thing."""
        details = self.details(form)
        found = await self.targets(view, form)

        def act(name: str) -> _Outcome:
            things = found[name]
            what = {f"{self.noun}s" if len(things) > 1 else self.noun: [self.name_of(one) for one in things], **details}

            def step(shard: Shard) -> _Outcome:
                return self._change_each(FormAt(form, shard, view), things)

            return audited(self.record, step, what, lambda one: one.changes)(view.shards[name])

        outcomes = (await view.each(act, [name for name, things in found.items() if things])).values()
        parts = [self.done(sum(one.changes for one in outcomes))]
        if gone := sum(one.gone for one in outcomes):
            parts.append(Sentence("{gone:,} had gone before, or are others by now", gone=gone))
        if refused := [reason for one in outcomes for reason in one.refused]:
            parts.append(
                Sentence(
                    "{number:,} cannot be changed: {reasons}",
                    number=len(refused),
                    reasons=joined(refused[:_SHOWN_REASONS], " "),
                )
            )
        return joined(parts)

    def _change_each(self, at: FormAt, things: Sequence[T]) -> _Outcome:
        changes, gone, refused = 0, 0, list[str]()
        for one in things:
            try:
                changed = self.change(at, one)
            except JobRefusedError as error:
                refused.append(str(error))
            else:
                changes, gone = changes + changed, gone + (not changed)
        return _Outcome(changes, gone, refused)


class RowAction(ShardAction[T]):
    """An action on rows of the page's table: those that the form names in its field ``row`` (``SHARD NAME``), or all (``all``)."""

    rows: Rows[T]

    @property
    def noun(self) -> str:
        """Return what a row is called."""
        return self.rows.noun

    def name_of(self, one: T) -> str:
        """Return the name of a row."""
        return self.rows.name_of(one)

    async def targets(self, view: View, form: Form) -> Mapping[str, Sequence[T]]:
        """Return the chosen rows."""
        wanted, is_all = set(form.get("row", ())), bool(word(form, "all"))
        if not wanted and not is_all:
            raise ValueError(Sentence("No {noun} is selected: select some, or choose all.", noun=Sentence(self.noun)))

        def read(shard: str) -> list[T]:
            return [
                one
                for one in self.rows.read(view, view.shards[shard])
                if (is_all or f"{shard} {self.name_of(one)}" in wanted)
                and view.may(self.role, shard, self.rows.worker_of(one))
            ]

        return await view.each(read, None if is_all else {one.partition(" ")[0] for one in wanted})


class ClassAction(ShardAction[str]):
    """An action on the class of the path, on each chosen shard. The page of a class offers those of features (``class_actions``)."""

    @property
    def noun(self) -> str:
        """Return what it acts on."""
        return "class"

    async def targets(self, view: View, form: Form) -> Mapping[str, Sequence[str]]:  # noqa: ARG002 - the path has the class
        """Return the class, on each shard where the caller may act on it."""
        name = view.parameters["class"]
        return {shard: [name] for shard in view.shards if view.may(self.role, shard, name)}

    def name_of(self, one: str) -> str:
        """Return the class."""
        return one

    def question(self, form: Form, count: int) -> str:  # noqa: ARG002 - for subclasses
        """Return what is asked."""
        return Sentence("{label}, on {shards}?", label=Sentence(self.label), shards=format_count(count, "shard"))

    def done(self, count: int) -> str:
        """Return what was done."""
        return Sentence("{label}: done on {shards}", label=Sentence(self.label), shards=format_count(count, "shard"))
