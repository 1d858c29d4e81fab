"""Ask every reader for the causes of trouble on each shard, at the same time, and put the causes in order."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from redis.exceptions import RedisError, ResponseError

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader, in_order
from framework.admin.diagnosis.facts import DiagnosisScope, Installation, ShardEvidence
from framework.admin.diagnosis.of_failures import FailureReader
from framework.admin.diagnosis.of_processes import ProcessReader
from framework.admin.diagnosis.of_queues import QueueReader
from framework.admin.diagnosis.of_server import AWAY_ALERTS, ServerReader, cause_away
from framework.errors import ShardUnavailableError
from framework.feature import all_features
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import ANSWER_WITHIN_S, answering
from framework.supervised_threads import SupervisedThread
from framework.text import Sentence

_READ_WITHIN_S = 10.0
"""The longest time for one shard: a slow one is read in some seconds."""


@dataclass(slots=True)
class Diagnosis:
    """The causes, the likeliest first, and notes about what could not be looked at."""

    causes: list[Cause] = field(default_factory=list[Cause])
    notes: list[str] = field(default_factory=list[str])
    processor_s: float = 0.0
    """The processor time of the threads that have read the shards."""


def readers() -> list[type[CauseReader]]:
    """Return what finds causes: of the core, then of the features."""
    own: list[type[CauseReader]] = [ServerReader, ProcessReader, QueueReader, FailureReader]
    return own + [one.causes.load() for one in all_features() if one.causes is not None]


def alerts() -> Mapping[str, frozenset[CauseCode]]:
    """Return the causes that can raise each alert, by the name of the alert."""
    found: dict[str, set[CauseCode]] = {}
    for by_code in (AWAY_ALERTS, *(one.alerts for one in readers())):
        for code, names in by_code.items():
            for name in names:
                found.setdefault(name, set()).add(code)
    return {name: frozenset(codes) for name, codes in sorted(found.items())}


def diagnose(shards: Sequence[Shard], installation: Installation, scope: DiagnosisScope) -> Diagnosis:
    """Return the causes on these shards that concern the scope.

    One that does not answer costs a second; all are read at the same time. Raises no redis errors.
    """
    found = Diagnosis()
    reading: list[_Reading] = []
    for shard, error in answering(shards, ANSWER_WITHIN_S):
        if error is not None:
            found.causes.append(away(shard, error, installation))
        else:
            reading.append(_Reading(shard, installation, scope))
    deadline = time.monotonic() + _READ_WITHIN_S
    for one in reading:
        one.wait(deadline, found)
    asked = alerts().get(scope.alert or "", frozenset())
    causes = in_order(found.causes)
    # Sorting is stable: the causes that can raise the alert come first, each group in its order.
    found.causes = sorted(causes, key=lambda one: one.code not in asked) if scope.alert else causes
    return found


def away(shard: Shard, error: ShardUnavailableError, installation: Installation) -> Cause:
    """Return the cause for a shard that does not answer."""
    # An application may have opened a shard that its settings do not name.
    configured = installation.settings.shards.get(shard.name)
    embedded = configured is not None and configured.is_embedded
    return cause_away(shard, error, embedded=embedded)


class _Reading:
    """The reading of one shard in a thread of its own."""

    def __init__(self, shard: Shard, installation: Installation, scope: DiagnosisScope) -> None:
        self._shard = shard
        self._facts = ShardEvidence(shard, installation, scope)
        self._causes: list[Cause] = []
        self._notes: list[str] = []
        self._error: ShardUnavailableError | None = None
        self._processor_s = 0.0
        self._ended = threading.Event()
        SupervisedThread(f"read {shard.name}", self._run).start()

    def wait(self, deadline: float, found: Diagnosis) -> None:
        """Add what was found until the deadline (monotonic seconds)."""
        ended = self._ended.wait(max(0.0, deadline - time.monotonic()))
        found.causes += list(self._causes)
        found.notes += list(self._notes)
        found.processor_s += self._processor_s
        if self._error is not None:
            found.causes.append(away(self._shard, self._error, self._facts.installation))
        elif not ended:
            found.notes.append(
                Sentence(
                    "{shard} is so slow that not all of it was read in {limit_s:g} s",
                    shard=self._shard.name,
                    limit_s=_READ_WITHIN_S,
                )
            )

    def _run(self) -> None:
        try:
            for found in read_causes(self._facts, self._notes):
                self._causes += found
        except (RedisError, OSError) as error:
            self._error = unavailable_error(self._shard.name, self._shard.endpoint, error)
        finally:
            self._processor_s = time.thread_time()
            self._ended.set()


def read_causes(facts: ShardEvidence, notes: list[str]) -> Iterator[list[Cause]]:
    """Yield the causes that each reader finds on a shard, and add to the notes what could not be looked at.

    Raises redis errors: the shard answers no more.
    """
    for kind in readers():
        try:
            yield _asked_for(kind(facts).causes(), facts)
        # A missing right, or a key of another type.
        except ResponseError as error:
            notes.append(
                Sentence(
                    "{shard}: {reader} could not look at everything: {error}",
                    shard=facts.shard,
                    reader=kind.__name__,
                    error=error,
                )
            )
        except (RedisError, OSError):
            raise
        # At 3 a.m. the other causes count: what other programs wrote into a key must not hide them.
        except Exception as error:  # noqa: BLE001
            notes.append(
                Sentence("{shard}: {reader} failed: {error!r}", shard=facts.shard, reader=kind.__name__, error=error)
            )


def _asked_for(causes: Iterable[Cause], facts: ShardEvidence) -> list[Cause]:
    """Return the causes that concern the class and the queue of the scope."""
    cls, queue = facts.scope.cls, facts.scope.queue
    found = list(causes)
    if cls is not None:
        found = [one for one in found if _concerns(cls, one.classes, {facts.queue_of(cls)}, one.queues)]
    if queue is not None:
        found = [
            one
            for one in found
            if _concerns(queue, one.queues, {facts.queue_of(name) for name in one.classes}, {queue})
        ]
    return found


def _concerns(name: str, named: frozenset[str], its: AbstractSet[str], others: AbstractSet[str]) -> bool:
    """Return whether a cause concerns a thing: by its name, or, without names of this kind, by those of the other kind."""
    return name in named if named else not its or not others or bool(its & others)
