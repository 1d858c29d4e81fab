"""Show in ``jobs explain`` the caller that waits for a job, the kept answer, and the profile."""

from collections.abc import Iterator, Mapping

from framework.admin.job_answer import KeptAnswer
from framework.command_line import command
from framework.features.results.payload import call_of
from framework.shard.profile_store import JobProfile
from framework.telemetry.logs import shorten
from framework.telemetry.visible import visible
from framework.text import format_duration
from framework.types import Payload
from framework.wire.job import PROFILE


def wish_lines(payload: Payload) -> Iterator[str]:
    """Yield a line for each request of a job's push: for an answer, for a profile."""
    if (call := call_of(payload)) is not None:
        caller = (
            f"the process {visible(call.caller)} has called it, and waits for" if call.caller else "its push asked for"
        )
        yield f"  result    {caller} its answer, which is kept for {format_duration(call.ttl_s)} after its end"
    if PROFILE in payload:
        yield "  profile   each run is profiled, and its page kept for a day"


def kept_lines(
    jid: str, answers: Mapping[str, KeptAnswer], profiles: Mapping[str, JobProfile], *, indent: bool
) -> Iterator[str]:
    """Yield a line for each answer and profile of a job that a shard keeps, also of a job that has ended."""
    before = "  - " if indent else ""
    for shard, answer in answers.items():
        reason = f" ({visible(shorten(answer.reason))})" if answer.reason else ""
        left = format_duration(answer.kept_s)
        yield f"{before}its answer on {shard}: {visible(answer.end)}{reason}, kept for {left} more"
    for shard, profile in profiles.items():
        error = f", ended with {visible(shorten(profile.error))}" if profile.error else ""
        shown = command(f"jobs profile {visible(shorten(jid))}")
        yield f"{before}its profile on {shard}: a run of {profile.duration_s:.3g} s{error}; `{shown}` writes the page"


def class_lines(called: int, profiled: int, profiles: int) -> Iterator[str]:
    """Yield lines: how many jobs of a class have a caller or are profiled, and how many profiles are kept."""
    if called:
        yield f"  result    {called:,} of these jobs {'has a caller that waits' if called == 1 else 'have callers that wait'}"
    if profiled or profiles:
        shown = command("jobs profile")
        yield f"  profile   {profiled:,} of these jobs profiled, {profiles:,} kept: `{shown}` lists them"
