"""Run a command on several shards, and report those that do not answer."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import click
from redis.exceptions import RedisError

from framework.admin.audit import acting_as, audited
from framework.all_settings import load
from framework.command_line import CONSOLE_SCRIPT, EXIT_FAILED, worker_command
from framework.errors import ShardUnavailableError
from framework.process.identity import operator_name
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import answering, open_shards
from framework.store.connect import server_time
from framework.terminal.options import check_shard, confirm
from framework.terminal.output import columns, echo, echo_json, echo_lines

_PROGRESS_INTERVAL_S = 1.0

T = TypeVar("T")


class ShardFinding(NamedTuple, Generic[T]):
    """One thing that a command has read from a shard; ``now`` is the time of its Redis before the reading."""

    shard: str
    now: float
    one: T


@dataclass(frozen=True, slots=True)
class ShownTable:
    """Things that a command shows: as rows of a table, or as a list in a field of the JSON."""

    field: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    facts: Sequence[Mapping[str, Any]]
    empty_message: str


class ShardTable(ABC, Generic[T]):
    """How commands show things of one kind."""

    field: ClassVar[str]
    """The field of their list in JSON."""
    headings: ClassVar[Sequence[str]] = ()
    names_shard: ClassVar[bool] = True
    """Whether a column in front has the shard of each."""

    @abstractmethod
    def row(self, one: T, now: float, /) -> Sequence[str]:
        """Return the cells of a thing, at the time of its Redis."""

    def facts(self, one: T, /) -> Mapping[str, Any]:
        """Return its JSON. The shard is added in front of facts without it."""
        thing = cast("Any", one)
        return cast("Mapping[str, Any]", thing._asdict() if hasattr(thing, "_asdict") else asdict(thing))

    def of(self, found: Iterable[ShardFinding[T]], empty_message: str = "", *, most: int | None = None) -> ShownTable:
        """Return the table of these things; it shows ``most`` of them, while the JSON has all."""
        listed, column = list(found), self.names_shard
        facts = [(shard, self.facts(one)) for shard, _, one in listed]
        return ShownTable(
            self.field,
            ("SHARD", *self.headings) if column else self.headings,
            [(*([shard] if column else ()), *self.row(one, now)) for shard, now, one in listed[:most]],
            [one if "shard" in one else {"shard": shard, **one} for shard, one in facts],
            empty_message,
        )


class ShardCommand:
    """The shards of one command. A shard that does not answer is reported and skipped; the others continue."""

    _all_answer = False
    """Whether every shard that is left has answered in this command."""

    def __init__(self, names: Sequence[str], role: str = "jobs") -> None:
        self.settings = load()
        for name in names:
            check_shard(self.settings, name)
        opened = open_shards(self.settings, role=role)
        self.shards: Mapping[str, Shard] = {name: opened[name] for name in names or sorted(opened)}
        self.unanswered: list[str] = []

    def each(self, step: Callable[[Shard], T]) -> Iterator[tuple[str, T]]:
        """Yield the result of the step on each shard that answers, those that answer late at the end."""
        for shard in self._answering():
            try:
                yield shard.name, step(shard)
            except (RedisError, OSError) as error:
                self.note_unanswered(shard.name, unavailable_error(shard.name, shard.endpoint, error))

    def read(self, step: Callable[[Shard], Iterable[T]]) -> list[ShardFinding[T]]:
        """Return the things that the step yields on each shard that answers."""
        read = self.each(lambda shard: (server_time(shard.client), list(step(shard))))
        return [ShardFinding(shard, now, one) for shard, (now, found) in read for one in found]

    def tell(self, step: Callable[[Shard], str | None]) -> None:
        """Print the text that an action returns on each shard that answers; end with status 1 if one does not."""
        for shard, text in self.each(recorded(step)):
            if text is not None:
                echo(f"{shard}: {text}")
        self.exit_if_unanswered()

    def _answering(self) -> Iterator[Shard]:
        if self._all_answer:
            yield from [self.shards[name] for name in self.answered]
            return
        for shard, error in answering([self.shards[name] for name in self.answered]):
            if error is None:
                yield shard
            else:
                self.note_unanswered(shard.name, error)
        self._all_answer = True

    def note_unanswered(self, name: str, error: ShardUnavailableError) -> None:
        """Report a shard that does not answer; later steps skip it."""
        self.unanswered.append(name)
        echo(str(error), err=True)

    def print_json(self, found: Mapping[str, Any]) -> None:
        """Print the result as JSON, with the names of the shards that did not answer."""
        echo_json({**found, "unanswered": self.unanswered})

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], empty_message: str) -> None:
        """Print the rows; without rows, print ``empty_message`` when at least one shard answered."""
        if rows:
            echo_lines(columns([headings, *rows]))
        elif len(self.unanswered) < len(self.shards):
            echo(f"{empty_message}{' on the shards that answered' if self.unanswered else ''}.")

    def show(self, *tables: ShownTable, as_json: bool) -> None:
        """Print the tables, or their JSON. Each table but the first is printed only with rows, after an empty line."""
        if as_json:
            self.print_json({table.field: table.facts for table in tables})
            return
        for number, table in enumerate(tables):
            if number and table.rows:
                echo()
            if not number or table.rows:
                self.print_table(table.headings, table.rows, table.empty_message)

    def show_all(
        self, table: ShardTable[T], step: Callable[[Shard], Iterable[T]], empty_message: str, *, as_json: bool
    ) -> None:
        """Print the things that the step yields on each shard; end with status 1 when one did not answer."""
        self.show(table.of(self.read(step), empty_message), as_json=as_json)
        self.exit_if_unanswered()

    @property
    def answered(self) -> list[str]:
        """The shards on which every step succeeded."""
        return [name for name in self.shards if name not in self.unanswered]

    def exit_if_unanswered(self) -> None:
        """End with status 1, and name the shards, when a shard did not answer or refused."""
        if self.unanswered:
            done = f"Carried out on {' and '.join(self.answered)}; not" if self.answered else "Not carried out"
            options = " ".join(f"--shard {name}" for name in self.unanswered)
            failed = " and ".join(self.unanswered)
            echo(f"{done} on {failed}: run the command again with {options} when Redis answers.", err=True)
            sys.exit(EXIT_FAILED)

    def exit_unless(self, done: object, message: str = "") -> None:
        """End with status 1 when a shard did not answer; else unless ``done`` is true, with the message."""
        self.exit_if_unanswered()
        if not done:
            if message:
                echo(message, err=True)
            sys.exit(EXIT_FAILED)


_NO_DETAILS = frozenset({"names", "as_json", "yes", "modules", "rate", "budget_s", "arguments"})
"""Parameters that do not say what a command changes; those of jobs may be private."""


def recorded(step: Callable[[Shard], T], count: Callable[[T], int | None] | None = None) -> Callable[[Shard], T]:
    """Return the step of the running command with its record in the audit log: the command, and its parameters.

    ``count`` returns the number of changed things; without it a number or a truth that the step returns counts. A step of a
    command with ``--dry-run`` changes nothing, and stays as it is.
    """
    context = click.get_current_context()
    what = {name: value for name, value in context.params.items() if name not in _NO_DETAILS and value is not False}
    if context.params.get("dry_run"):
        return step
    run = audited(_command_name(context), step, what, count)

    def as_command(shard: Shard) -> T:
        with acting_as(operator_name(), "command"):
            return run(shard)

    return as_command


def _command_name(context: click.Context) -> str:
    """Return the command without the program: ``jobs pause-queue``, however it was started."""
    names: list[str] = []
    at: click.Context | None = context
    while at is not None:
        names.insert(0, at.command.name or "")
        at = at.parent
    return " ".join(names).removeprefix(f"{CONSOLE_SCRIPT} ")


class ChangeWords(NamedTuple):
    """The words of a command that changes one thing."""

    question: str
    """The begin of the question to the operator, such as ``End the lease``."""
    done: str
    not_done: str
    """What is said if it has changed since it was shown."""
    none: str
    """The error if nothing was changed."""


class NamedTable(ShardTable[T]):
    """A table of things that a command changes, each by its name."""

    @abstractmethod
    def find(self, shard: Shard, name: str, /) -> T | None:
        """Return the thing of this name, ``None`` if the shard does not have it. Raises redis errors."""

    def describe(self, shard: Shard, one: T, /) -> Iterable[str]:  # noqa: ARG002 - for subclasses
        """Return the lines that are shown before the question."""
        return ()

    def question_end(self, shard: Shard, one: T, /) -> str:  # noqa: ARG002 - for subclasses
        """Return the end of the question."""
        return f"on {shard.name}"

    def change(
        self, on: ShardCommand, name: str, act: Callable[[Shard, T], bool], words: ChangeWords, *, yes: bool
    ) -> None:
        """Show the thing on each shard that has it, ask, and change it; end with status 1 if none was changed.

        ``act`` changes it only as it was shown, and returns whether it did.
        """

        def step(shard: Shard) -> bool:
            one = self.find(shard, name)
            if one is None:
                return False
            for line in self.describe(shard, one):
                echo(line)
            confirm(f"{words.question} {self.question_end(shard, one)}?", yes=yes)
            changed = recorded(lambda home: act(home, one))(shard)
            echo(f"{shard.name}: {words.done if changed else words.not_done}")
            return changed

        on.exit_unless([shard for shard, changed in on.each(step) if changed], words.none)


def unserved_queue_message(shard: str, queue: str, hint: str = "") -> str:
    """Return the message for a queue that no running process serves, with the command that serves it."""
    remedy = f"start one with `{worker_command('--shard', shard, '-q', queue)}`"
    return f"no running process of {shard} serves the queue {queue}{hint}: {remedy}"


def progress_reporter(shard: str, *, only_on_terminal: bool = True) -> Callable[[str, int], None]:
    """Return a callback that reports on stderr, at most once a second, how many jobs of a shard were scanned."""
    reported_at = time.monotonic()

    def report(key: str, scanned: int) -> None:
        nonlocal reported_at
        visible = sys.stderr.isatty() or not only_on_terminal
        if visible and time.monotonic() - reported_at >= _PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            echo(f"{shard}: {scanned:,} jobs scanned, now in {key}", err=True)

    return report
