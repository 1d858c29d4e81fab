"""Cancel jobs: ``framework.cancel(jid)``, and ``await framework.acancel(jid)``."""

from framework.async_twin import async_twin
from framework.declare import port
from framework.types import Jid
from framework.wire.job import check_jid

__all__ = ["acancel", "cancel"]


def cancel(jid: Jid) -> bool:
    """Cancel a job, wherever it is; return false if its state says that it has ended (``status_expiration``), else true.

    A job that has not started ends without running, when its turn comes. A running job is asked to end: ``self.cancelled`` becomes
    true, and the task of an ``async def perform`` is cancelled. Processes know it within five seconds: the job does not begin later.
    One round trip to each shard: the job is not searched, so the result does not say that it exists. May be called again.

    Raises:
        TypeError, ValueError: ``jid`` cannot be a job's id.
        ShardUnavailableError: a shard does not answer. The job is cancelled if it is on another; call it again.
        ConfigurationError: the configuration is invalid.
    """
    return port.current().cancel(check_jid(jid))


acancel = async_twin(cancel)
