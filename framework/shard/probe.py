"""Ask shards at the same time whether they answer, so that one that is frozen or far away delays a command once, and briefly."""

import threading
import time
from collections.abc import Iterable, Iterator

from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.supervised_threads import SupervisedThread

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
