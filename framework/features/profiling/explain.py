"""Explain that the runs of a job are profiled, and which profiles are kept."""

from collections.abc import Sequence

from redis.exceptions import ResponseError

from framework.admin.explain_reader import ExplainReader, KeptFact, ShardSnapshot, ShownFacts
from framework.command_line import command
from framework.features.profiling.store import read_profile, read_profiles
from framework.telemetry.logs import shorten
from framework.text import Sentence, visible
from framework.types import Jid, Payload
from framework.wire.job import PROFILE


class ProfileReader(ExplainReader):
    """Tell the profiles of a job, or of a class."""

    kept_name = "profiles"

    def __init__(self, snapshot: ShardSnapshot) -> None:
        super().__init__(snapshot)
        self._profiled = 0

    def wishes(self, payload: Payload) -> ShownFacts:
        asked = PROFILE in payload
        lines = [("profile", Sentence("each run is profiled, and its page kept for a day"))] if asked else []
        return ShownFacts(lines, {"profile": asked})

    def kept(self, jid: Jid) -> KeptFact | None:
        try:
            profile = read_profile(self.snapshot.client, self.snapshot.shard, jid, with_page=False)
        except ResponseError:
            # Another program has written a key of another type.
            return None
        if profile is None:
            return None
        error = Sentence(", ended with {error}", error=visible(shorten(profile.error))) if profile.error else ""
        shown = command(f"jobs profile {visible(shorten(jid))}")
        text = Sentence(
            "its profile on {shard}: a run of {duration_s:.3g} s{error}; `{shown}` writes the page",
            shard=self.snapshot.shard,
            duration_s=profile.duration_s,
            error=error,
            shown=shown,
        )
        return KeptFact(text, {"at": profile.at, "duration_s": profile.duration_s})

    def count(self, jobs: Sequence[Payload]) -> None:
        self._profiled += sum(PROFILE in job for job in jobs)

    def of_class(self, worker: str) -> ShownFacts:
        kept = sum(one.cls == worker for one in read_profiles(self.snapshot.client, self.snapshot.shard))
        shown = Sentence(
            "{profiled:,} of these jobs profiled, {kept:,} kept: `{command}` lists them",
            profiled=self._profiled,
            kept=kept,
            command=command("jobs profile"),
        )
        lines = [("profile", shown)] if self._profiled or kept else []
        return ShownFacts(lines, {"profiled": self._profiled, "profiles": kept})
