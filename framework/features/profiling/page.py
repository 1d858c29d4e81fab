"""The kept profiles of jobs that were pushed with ``set(profile=True)``."""

from collections.abc import Iterable
from typing import Any

from framework.features.profiling.store import JobProfile, read_profiles
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard


class ProfileRows(Rows[JobProfile]):
    """The profiles that a shard keeps."""

    noun = "profile"

    def read(self, view: View, shard: Shard) -> Iterable[JobProfile]:  # noqa: ARG002 - of Rows
        """Return the profiles of a shard."""
        return read_profiles(shard.client, shard.name)

    def name_of(self, one: JobProfile) -> str:
        """Return the id of the job."""
        return one.jid

    def worker_of(self, one: JobProfile) -> str | None:
        """Return the class."""
        return one.cls

    def facts(self, one: JobProfile) -> Facts:
        """Return the run and the command that writes its page."""
        return {
            "class": one.cls,
            "at": one.at,
            "duration_s": one.duration_s,
            "error": one.error,
            "bytes": one.page_bytes,
        }


class ProfilesPage(TablePage[JobProfile]):
    """Show the profiles, the newest first."""

    name = "profiles"
    path = "/profiles"
    title = "Profiles"
    menu = "records"
    of_jobs = True
    rows = ProfileRows()
    heading = "Job"
    name_kind = "job"
    columns = (
        Column("Class", "class", "class"),
        Column("Written", "at", "time"),
        Column("Duration", "duration_s", "duration"),
        Column("Error", "error"),
        Column("Size", "bytes", "bytes"),
    )
    about = "Profiles of jobs that were pushed with set(profile=True). A command writes the page of one into a file."
    empty = "No profile is kept."

    def order(self, row: Facts) -> Any:
        """Return the newest first."""
        return -row["at"], row["name"]
