"""Read the profiles of jobs that were pushed with ``set(profile=True)``."""

from framework.admin.access import Listing, ask, collect, raise_first
from framework.async_twin import async_twin
from framework.features.profiling.store import JobProfile, read_profile, read_profiles
from framework.typeguards import is_text
from framework.types import Jid

__all__ = ["JobProfile", "aprofile", "aprofiles", "profile", "profiles"]


def profiles(shard: str | None = None) -> Listing[JobProfile]:
    """Return the kept profiles without their pages, the newest of each shard first. A shard keeps the newest 20, for a day.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return collect(shard, lambda one: read_profiles(one.client, one.name))


aprofiles = async_twin(profiles)


def profile(jid: Jid, shard: str | None = None) -> JobProfile | None:
    """Return the kept profile of a job with its page (``html``); ``None`` if there is none.

    Raises:
        ShardUnavailableError: no shard answers, or none that answers has it and another does not answer.
    """
    if not is_text(jid):
        return None
    answers = ask(shard, lambda one: read_profile(one.client, one.name, jid))
    found = [one for one in answers.by_shard.values() if one is not None]
    if not found:
        raise_first(answers.unanswered)
    # The newest: a job that went to another shard may have run on both.
    return max(found, key=lambda one: one.at, default=None)


aprofile = async_twin(profile)
