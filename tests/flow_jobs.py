"""Jobs whose results flow to later steps and callbacks, for real worker processes and for fakes."""

from pathlib import Path
from typing import Any

from framework import ApplicationWorker, Discard, background


class FlowWorker(ApplicationWorker, abstract=True):
    """Share the attributes."""

    feature_category = "not_owned"
    queue = "default"
    retry = 0


class PartWorker(FlowWorker):
    """Return a name; fail, be discarded or return what is no JSON, if the number says so."""

    def perform(self, export: int, part: int) -> Any:
        if part == 13:
            raise Discard("no such part")
        if part == 14:
            return (1, 2)
        if part == 15 and not Path("repaired").exists():
            raise LookupError("broken")
        return f"{export}-{part}"


class IsolatedPartWorker(FlowWorker):
    """Return a name from a process of its own."""

    isolation = "process"

    def perform(self, part: int) -> str:
        return f"isolated-{part}"


class JoinWorker(FlowWorker):
    """Write what it has received."""

    def perform(self, export: int, files: list[str]) -> int:
        Path(f"joined-{export}").write_text(",".join(files))
        return len(files)


@background(base=FlowWorker)
def report(count: int, file: str) -> None:
    """Write a number that was received, and a text that was given."""
    Path(file).write_text(f"{count} parts")


class GroupWorker(FlowWorker):
    """Write the results of the batch whose callback it is."""

    def perform(self, file: str) -> None:
        assert self.batch_event is not None
        Path(file).write_text(repr(self.batch_event.batch.results()))
