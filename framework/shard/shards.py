"""Hold all shards of the configuration by name, and ask them at the same time whether they answer."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError, UnknownShardError
from framework.feature import Late, single_part
from framework.settings.model import CoreSettings
from framework.shard.redis_errors import unavailable_error
from framework.shard.routing_validator import RoutingValidator
from framework.shard.shard import Shard
from framework.store.block_store import IN_REDIS, BlockStore
from framework.store.embedded import endpoint_of
from framework.supervised_threads import SupervisedThread
from framework.telemetry.sentry import tracker_of
from framework.text import did_you_mean
from framework.types import Jid, JobState
from framework.wire.status_key import most_advanced

_LOOK_UP_CHUNK_SIZE = 1_000


class Shards(Mapping[str, Shard]):
    """Map names to shards; ``main`` is always among them."""

    def __init__(self, shards: Mapping[str, Shard], *, source: str = "config/redis.yml") -> None:
        self._shards = dict(shards)
        self._source = source

    def __getitem__(self, name: str) -> Shard:
        try:
            return self._shards[name]
        except KeyError:
            known = sorted(self._shards)
            raise UnknownShardError(
                f"no shard is named {name!r}{did_you_mean(name, known)}; {self._source} has: {', '.join(known)}"
            ) from None

    def __iter__(self) -> Any:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        """Return the state of each job, merged over all shards, with one MGET per shard for a thousand jobs.

        Raises:
            ShardUnavailableError: a shard does not answer; without its reply no state is certain.
        """
        states: dict[Jid, JobState] = {}
        wanted = list(dict.fromkeys(jids))
        for start in range(0, len(wanted), _LOOK_UP_CHUNK_SIZE):
            part = wanted[start : start + _LOOK_UP_CHUNK_SIZE]
            values = zip(*(shard.states(part) for shard in self._shards.values()), strict=True)
            states.update({jid: most_advanced(per_shard) for jid, per_shard in zip(part, values, strict=True)})
        return states

    def cancel(self, jid: Jid) -> bool:
        """Mark a job as cancelled on every shard, as its shard is not known; return whether no shard says that it has ended.

        Raises:
            ShardUnavailableError: a shard does not answer. The job is marked on the others.
        """
        marked: list[bool] = []
        failure: ShardUnavailableError | None = None
        for shard in self._shards.values():
            try:
                marked += shard.cancel([jid])
            except ShardUnavailableError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return all(marked)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


def open_shards(settings: CoreSettings, *, role: str) -> Shards:
    """Return every configured shard. Opens no socket."""
    validator, store = open_validated_client(settings), open_block_store(settings)
    return Shards(
        {
            name: Shard(name, endpoint_of(settings, name), role=role, validator=validator, block_store=store)
            for name in settings.shards
        },
        source=settings.config_file_label("redis.yml"),
    )


def open_block_store(settings: CoreSettings) -> BlockStore:
    """Return where blocks of packed jobs may be beside Redis. Opens nothing."""
    part: Late[Callable[[CoreSettings], BlockStore]] | None = single_part("block_store")
    return IN_REDIS if part is None else part.load()(settings)


def open_validated_client(settings: CoreSettings) -> RoutingValidator:
    """Return the validator of the application's own calls to a shard: it raises in development, reports in production."""
    return RoutingValidator(strict=not settings.production, tracker=lambda: tracker_of(settings))


ANSWER_WITHIN_S = 1.0
"""How long a command that reads every shard waits for the first answer of one."""

# Answers that come within this time are taken in the order of the shards' names, so that the output does not depend on chance.
_IN_ORDER_S = 0.25
# The sentinels of a shard are asked in turn, and one that does not answer takes this long.
_PER_SENTINEL_S = 1.0


def answering(
    shards: Iterable[Shard], within_s: float = ANSWER_WITHIN_S
) -> Iterator[tuple[Shard, ShardUnavailableError | None]]:
    """Yield each shard when it has answered, in the order of ``shards``, and the late ones at the end.

    The error is that of a shard without an answer within ``within_s``. Any reply is an answer, and so is a refused connection: the
    next command has its error at once.
    """
    probes = [_Probe(shard) for shard in shards]
    in_order_until = time.monotonic() + _IN_ORDER_S
    late: list[_Probe] = []
    for probe in probes:
        if probe.answered_by(in_order_until):
            yield probe.shard, None
        else:
            late.append(probe)
    for probe in late:
        yield probe.shard, probe.error_after(within_s)


class _Probe:
    """One small command, sent in a thread of its own. Its connection stays in the pool for the commands that follow."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._timeout: RedisTimeoutError | None = None
        # A daemon: a process that has its answers does not wait for the thread of a frozen shard.
        SupervisedThread(f"probe {shard.name}", self._run).start()

    def answered_by(self, moment: float) -> bool:
        """Wait until ``moment`` (monotonic seconds) for the answer; return whether it has come."""
        return self._ended.wait(max(0.0, moment - time.monotonic())) and self._timeout is None

    def error_after(self, within_s: float) -> ShardUnavailableError | None:
        """Return ``None`` once the shard has answered, or the error when it did not within ``within_s``."""
        endpoint = self.shard.endpoint
        limit_s = within_s + _PER_SENTINEL_S * len(endpoint.sentinels)
        if self.answered_by(self._began + limit_s):
            return None
        late = self._timeout or RedisTimeoutError(f"no answer within {limit_s:g} s")
        return unavailable_error(self.shard.name, endpoint, late)

    def _run(self) -> None:
        try:
            # A command that every role may send.
            self.shard.client.time()
        except RedisTimeoutError as error:
            self._timeout = error
        except Exception:  # noqa: BLE001, S110 - the next command has the same error, in the thread that reports it
            pass
        finally:
            self._ended.set()
