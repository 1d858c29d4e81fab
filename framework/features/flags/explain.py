"""Read the flags in force for ``jobs explain``, once for all features that ask; and the flags that an operator assumes."""

from collections.abc import Callable, Mapping
from typing import Any

import click
from redis.exceptions import RedisError

from framework.admin.explain_reader import Assumed, AssumptionReader, ShardSnapshot
from framework.declare.declaration import Declaration
from framework.feature import Late
from framework.features.flags.flag import (
    Flag,
    FlagSource,
    LayeredFlags,
    check_flag_name,
    drop_flag,
    is_class_flag,
    pause_flag,
    run_flag,
)
from framework.features.flags.process_flags import serve_flags
from framework.features.flags.redis_flags import RedisFlags, ShardFlags, read_flags
from framework.shard.shard import Shard
from framework.text import Sentence, did_you_mean, join_names

_EVALUATIONS = 200
"""Evaluations of a limit while a flag is on for a share of them: one of 3 % is then missed once in 400 times."""


def flags_in_force(snapshot: ShardSnapshot) -> Mapping[str, Flag]:
    """Return the operators' flags in force on a shard, by name. What is assumed counts instead of it."""
    # A snapshot under an assumption shares what was read: the assumption is no part of it.
    return {**snapshot.fact(_IN_FORCE), **snapshot.assumed.get("flags", {})}


def read_for_explain(snapshot: ShardSnapshot) -> Mapping[str, Flag]:
    """Return the flags in force, without what is assumed. Raises redis errors."""
    read = read_flags(snapshot.client)
    return {name: one for name, one in read.items() if one.expires_at is None or one.expires_at > snapshot.now}


_IN_FORCE: "Late[Callable[[ShardSnapshot], Mapping[str, Flag]]]" = Late(
    "framework.features.flags.explain:read_for_explain"
)


class FlagAssumption(AssumptionReader):
    """Assume flags of the class, or of the application: the limit of the class may ask those."""

    form = "flag:NAME=50"

    def __init__(self, worker: str, forms: str) -> None:
        super().__init__(worker, forms)
        self._flags: dict[str, Flag] = {}

    def read(self, text: str, name: str, value: str) -> bool:
        if not name.startswith("flag:"):
            return False
        name = name.removeprefix("flag:")
        known = self._class_flags
        if not is_class_flag(name):
            try:
                check_flag_name(name)
            except ValueError as error:
                raise click.UsageError(f"--assume {text!r}: {error}.") from error
        elif name not in known:
            hint = did_you_mean(name, known)
            raise click.UsageError(
                f"--assume {text!r}: no flag {name!r} of {self.worker}{hint}; there are {', '.join(known)}."
            )
        percentage = self.whole_number(text, value)
        if not 0 <= percentage <= 100:
            raise click.UsageError(f"--assume {text!r}: give a percentage from 0 to 100.")
        self._flags[name] = Flag(name, percentage, "assumed")
        return True

    def assumed(self, declaration: Declaration | None, shard: Shard, known: Mapping[str, Mapping[str, Any]]) -> Assumed:
        of_application = {name: flag for name, flag in self._flags.items() if not is_class_flag(name)}
        if not of_application or "concurrency" in known:
            return Assumed({"flags": self._flags})
        found = self._limits(declaration, of_application, shard)
        # The lowest counts.
        shown = Sentence("{names} by evaluation; {found} counts", names=" or ".join(map(str, found)), found=found[0])
        facts: dict[str, Mapping[str, Any]] = {"flags": self._flags, "concurrency": {self.worker: found[0]}}
        return Assumed(facts, [] if len(found) < 2 else [("limit", shown)])

    @property
    def _class_flags(self) -> tuple[str, ...]:
        return drop_flag(self.worker), run_flag(self.worker), pause_flag(self.worker)

    def _limits(self, declaration: Declaration | None, flags: Mapping[str, Flag], shard: Shard) -> list[int]:
        names = join_names(sorted(flags))
        if declaration is None:
            raise click.UsageError(
                f"--assume flag:{names}: the class {self.worker} is not loaded here; name its module with -r."
            )
        evaluate: Any = declaration.facts.get("concurrency_limit")
        if not callable(evaluate):
            raise click.UsageError(
                f"--assume flag:{names}: the concurrency_limit of {self.worker} is no function, so a flag of the application "
                f"changes nothing that this command can see. Flags of the class are {', '.join(self._class_flags)}."
            )
        try:
            return _evaluated(evaluate, flags, shard)
        except (RedisError, OSError):
            raise
        except Exception as error:  # the application's own function may raise anything
            raise click.UsageError(
                f"--assume flag:{names}: the concurrency_limit of {self.worker} raises {error!r}."
            ) from error


class _AssumedFlags(FlagSource):
    """Flags that count instead of those in force."""

    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self._flags = flags

    def find(self, name: str) -> Flag | None:
        return self._flags.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self._flags)

    def read(self) -> bool:
        return False


def _evaluated(evaluate: Callable[[], Any], flags: Mapping[str, Flag], shard: Shard) -> list[int]:
    """Return what the function of a class returns on a shard if these flags of the application count, lowest first.

    Runs the function of the application in this process. Raises what it raises, and redis errors.
    """
    stored = RedisFlags(shard.client, shard.name)
    stored.read()
    serve_flags(shard.name, ShardFlags(LayeredFlags(_AssumedFlags(flags), stored), stored))
    sampled = any(0 < flag.percentage < 100 for flag in flags.values())
    return sorted({int(evaluate() or 0) for _ in range(_EVALUATIONS if sampled else 1)})
