"""Check wire names: after a class has moved, jobs of the last release still have the old name."""

from collections.abc import Iterable, Sequence

from framework.devtools.lint.classes import ClassIndex, SourceClass
from framework.devtools.lint.rule import LintRule, Matches, match_at


def _moved(worker: SourceClass, classes: ClassIndex) -> Matches:
    known = worker.workspace.facts
    # A class in an unreadable file may have the name.
    if not known.released or worker.workspace.unreadable or not _is_new(worker):
        return
    lost = [name for name in known.released if _is_lost(name, worker, classes)]
    if lost:
        others = [one for one in classes.workers if one.name == worker.name and one is not worker and _is_new(one)]
        message = (
            f"the wire name of {{}} is {worker.wire_names[0]}, which {known.released_file} does not have, and no class "
        )
        message += f"runs jobs of {' and '.join(lost)}{_candidates_text(others)}"
        yield from match_at(worker.location_of("wire_name"), message, _lines(worker, lost))


def _is_new(worker: SourceClass) -> bool:
    """Return whether the class is concrete and its wire name is new since the last release."""
    return not worker.abstract and worker.workspace.facts.released.keys().isdisjoint(worker.wire_names)


def _is_lost(name: str, worker: SourceClass, classes: ClassIndex) -> bool:
    """Return whether a released class of the same name has no successor and was not retired."""
    same = name.rpartition("::")[2] == worker.name
    return same and name not in worker.workspace.facts.retired and not classes.may_have_wire_name(name)


def _lines(worker: SourceClass, lost: Sequence[str]) -> str:
    names = " or ".join(f'wire_name = "{name}"' for name in lost)
    aliases = " or ".join(f"aliases = {_tuple((*(worker.aliases or ()), name))}" for name in lost)
    return (
        f"write {names} to keep the name, or {aliases} to take the new one; "
        f"where the class of {' or '.join(lost)} was removed, name that in retired_workers"
    )


def _tuple(names: Sequence[str]) -> str:
    members = ", ".join(f'"{name}"' for name in names)
    return f"({members},)" if len(names) == 1 else f"({members})"


def _candidates_text(others: Iterable[SourceClass]) -> str:
    places = " or ".join(map(repr, others))
    return f" (or it became {places})" if places else ""


RULES = (
    LintRule(
        code="SEW032",
        name="moved",
        summary="A class has another wire name than in the last release, and no class runs jobs of the old name.",
        fix='declare the old name: wire_name = "..." to keep it, or aliases = ("...",) to take the new one',
        why="A wire name contains the packages of its class. A module that moves or becomes a package changes the "
        "name although no line of the class changes, and waiting jobs of the old name are set aside after a day. "
        "The old names come from `released.yml`, or before the first release from `all_queues.yml`, in the folder "
        "`generated_files`; without either the rule finds nothing. `check-compat` compares more than names, and "
        "imports the classes.",
        bad='''
from workers.base import TeamWorker


class SendInvoiceWorker(TeamWorker):  # here
    """Send an invoice. It was released in the package workers.billing, as Billing::SendInvoiceWorker."""

    def perform(self, invoice_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class SendInvoiceWorker(TeamWorker):
    """Send an invoice. It was released in the package workers.billing."""

    wire_name = "Billing::SendInvoiceWorker"

    def perform(self, invoice_id: int) -> None: ...
''',
        check_worker=_moved,
    ),
)
