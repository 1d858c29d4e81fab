"""Limit the sorted sets of ended jobs: how many a set keeps, and for how long."""

from dataclasses import dataclass

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SetLimits:
    """The limits of one set. The defaults are Sidekiq's for the dead set: it keeps at most 9,999 jobs for ``max_jobs`` 10,000."""

    max_jobs: int = 10_000
    max_age_s: float = 180 * _DAY_S
    max_business_jobs: int = 1_000
    """How many of these jobs may have ended by a ``BusinessError``."""

    @property
    def arguments(self) -> tuple[int, float]:
        """The script arguments of parts/trim.lua: most jobs, and their age in seconds."""
        return self.max_jobs, self.max_age_s


INTERRUPTED_SET_LIMITS = SetLimits(max_age_s=90 * _DAY_S)
"""GitLab's limits of the interrupted set."""
