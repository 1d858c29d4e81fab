"""What the dashboard's page of a class offers about deferred jobs: let them run sooner."""

from collections.abc import Mapping

from framework.admin.statistics import ignore_progress
from framework.features.deferral.admin import run_sooner, summarize_deferrals
from framework.pages.forms import Field, Form, number_of
from framework.pages.shard_action import ClassAction, FormAt
from framework.text import Sentence, format_count, joined

_MOST_JOBS = 10_000_000
_RATE = Field("rate", "Jobs a second", 1, 10_000, "100")


class RunDeferredNow(ClassAction):
    """Make the deferred jobs of a class due, at a rate."""

    name = "run-deferred"
    label = "Run deferred now"
    record = "jobs deferred run-now"
    fields = (_RATE,)

    def details(self, form: Form) -> Mapping[str, object]:
        """Return the rate."""
        return {"rate": number_of(form, "rate", 1, 10_000)}

    def shown(self, at: FormAt, one: str) -> str:
        """Return how many there are."""
        found = [each for each in summarize_deferrals(at.shard.client, ignore_progress) if each.worker == one]
        causes = joined([Sentence("{jobs:,} by {by}", jobs=each.jobs, by=each.by) for each in found if each.by], ", ")
        jobs = format_count(sum(each.jobs for each in found), "deferred job")
        return Sentence(
            "{jobs} on {shard}{causes}",
            jobs=jobs,
            shard=at.shard.name,
            causes=(Sentence(": {causes}", causes=causes) if causes else ""),
        )

    def effect(self, form: Form) -> str:
        """Return what follows."""
        rate = number_of(form, "rate", 1, 10_000)
        return Sentence(
            "They become due, {rate:,} a second. The policy that deferred them decides again, and may defer them again.",
            rate=rate,
        )

    def change(self, at: FormAt, one: str) -> int:
        """Give the jobs an earlier time."""
        rate = number_of(at.form, "rate", 1, 10_000)
        return run_sooner(at.shard.client, one, _MOST_JOBS, rate, ignore_progress)

    def done(self, count: int) -> str:
        """Return how many."""
        return Sentence("{jobs} made due", jobs=format_count(count, "deferred job"))
