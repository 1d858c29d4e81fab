"""Hold the jobs of a class that kills its processes, or fails too often: ``break_after = BreakAfter(deaths=3, failures=0.5)``."""

from framework.features.breaker.attributes import BreakAfter

__all__ = ["BreakAfter"]
