"""Check declarations: owner, idempotence, categories, names on the wire, and attributes that are refused or have no effect."""

from collections.abc import Iterable, Sequence

from framework.application_worker import ATTRIBUTES, CONSTRAINTS
from framework.declare.check import closest_name
from framework.declare.declaration import NOT_OWNED
from framework.declare.validators import InvalidValue
from framework.devtools.lint.classes import CURSOR, ENUMERATOR, ITERATION, AttributeValue, ClassIndex, SourceClass
from framework.devtools.lint.rule import LintRule, Match, Matches, match_at
from framework.devtools.lint.workspace import UNKNOWN
from framework.text import did_you_mean
from framework.typeguards import short_repr


def _not_idempotent(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("idempotent") is False:
        yield from match_at(worker.location_of("idempotent"), "{} does not declare that a second run does no harm")


def _not_owned(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("feature_category") == NOT_OWNED:
        yield from match_at(worker.location_of("feature_category"), "{} has no owner")


def _no_category(worker: SourceClass, _: ClassIndex) -> Matches:
    facts = worker.workspace.facts
    if facts.categories is not None and worker.value("feature_category") is None:
        message = f"{{}} has no feature_category, and {facts.categories_file} has categories"
        yield from match_at(worker.location_of("feature_category"), message)


def _unknown_category(worker: SourceClass, _: ClassIndex) -> Matches:
    known, category = worker.workspace.facts.categories, worker.value("feature_category")
    if known is not None and isinstance(category, str) and category not in (*known, NOT_OWNED):
        hint, file = did_you_mean(category, known), worker.workspace.facts.categories_file
        message = f"the feature_category {category!r} of {{}} is not in {file}{hint}"
        yield from match_at(worker.location_of("feature_category"), message)


def _refused(worker: SourceClass, _: ClassIndex) -> Matches:
    for name, declared in worker.own_attributes.items():
        reason = _reason(name, declared)
        if reason is not None and not worker.workspace.has_option(worker.module, name):
            yield Match(
                worker.module, declared.node, f"{worker.name}.{name} is refused when the class is created: {reason}"
            )
    for name, node in worker.bare_annotations:
        match = None if name.startswith("_") or name in worker.own_attributes else closest_name(name, ATTRIBUTES)
        if match is not None:
            yield Match(worker.module, node, f"{worker.name}.{name} is an annotation without a value and sets nothing")
    for rule in CONSTRAINTS:
        one, other = worker.value(rule.attribute), worker.value(rule.other_attribute)
        holds = (
            rule.other_attribute != "has_external_dependencies" and one == rule.value and other in rule.forbidden_values
        )
        if holds and worker.attribute(rule.attribute) is not None:
            yield from match_at(worker.location_of(rule.attribute), f"{{}}: {rule}, as {rule.reason}", rule.remedy)


def _misshaped_iteration(worker: SourceClass, _: ClassIndex) -> Matches:
    if not worker.is_iterable:
        return
    for owner in worker.mro:
        perform = owner.methods.get("perform")
        if perform is not None and owner.module.linted:
            message = f"{owner.name} iterates, so its perform belongs to the framework: the class is refused"
            yield Match(owner.module, perform, message)
    for name in (ENUMERATOR, ITERATION):
        found = next(((owner, owner.methods[name]) for owner in worker.mro if name in owner.methods), None)
        if found is None and worker.complete and not worker.abstract:
            yield Match(worker.module, worker.node, f"{worker.name} iterates, and has no {name}: the class is refused")
        elif found is not None and name == ENUMERATOR and found[0].module.linted:
            owner, function = found
            if CURSOR not in {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}:
                message = f"{owner.name}.{ENUMERATOR} has no parameter {CURSOR}: the class is refused"
                yield Match(owner.module, function, message)


def _reason(name: str, declared: AttributeValue) -> str | None:
    if name.startswith("_") or name.isupper() or name == "perform":
        return None
    if name not in ATTRIBUTES:
        slip = closest_name(name, ATTRIBUTES)
        plain = declared.value is not UNKNOWN or slip is not None
        return (
            f"it is no attribute{did_you_mean(name, ATTRIBUTES)}" if plain and declared.expression is not None else None
        )
    if declared.value is UNKNOWN:
        return None
    try:
        ATTRIBUTES[name].validator(declared.value)
    except InvalidValue as error:
        return f"{short_repr(declared.value)} is not allowed; allowed: {error}"
    return None


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
        code="SEW001",
        name="idempotent",
        summary="A worker does not declare `idempotent = True`.",
        fix="make a second run harmless and declare idempotent = True, or suppress with what happens twice",
        why="Delivery is at least once: a process that is killed between the end and the acknowledgement of a job "
        "leaves the job to run again. GitLab demands the attribute or a reason of every worker, so that each "
        "author considers it.",
        bad='''
from workers.base import TeamWorker


class ChargeWorker(TeamWorker):
    """Charge a customer: a second run charges twice."""

    idempotent = False  # here

    def perform(self) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ChargeWorker(TeamWorker):
    """Charge a customer, under a key that the bank knows from the first run."""

    idempotent = True

    def perform(self) -> None: ...
''',
        check_worker=_not_idempotent,
    ),
    LintRule(
        code="SEW013",
        name="not-owned",
        summary="A worker's feature category is `not_owned`.",
        fix="name the category of the team that is to be called, or suppress with the reason why no team owns it",
        why="Errors of a class without an owner reach no team. `not_owned` is for code that many features push; its "
        "jobs count for the feature that pushed them.",
        bad="""
from workers.base import TeamWorker


class ExportWorker(TeamWorker):
    feature_category = "not_owned"  # here

    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ExportWorker(TeamWorker):
    feature_category = "global_search"

    def perform(self) -> None: ...


class DeleteFileWorker(TeamWorker):
    feature_category = "not_owned"  # SEW013: storage that every feature uses

    def perform(self) -> None: ...
""",
        check_worker=_not_owned,
    ),
    LintRule(
        code="SEW016",
        name="feature-category",
        summary="A concrete worker has no `feature_category`, and `config/feature_categories.yml` has categories.",
        fix="declare feature_category = ... in the class, or once in the abstract base of the team",
        why="Every process that loads it exits with status 78. Routing, log lines and error reports need the owner. Without such "
        "a file the rule finds nothing: the class is `not_owned`.",
        bad="""
from framework import ApplicationWorker, DeferOnHealth


class ReindexWorker(ApplicationWorker):  # here
    data_consistency = "sticky"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self) -> None: ...
""",
        good="""
from framework import ApplicationWorker, DeferOnHealth


class SearchWorker(ApplicationWorker, abstract=True):
    feature_category = "global_search"
    data_consistency = "sticky"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")


class ReindexWorker(SearchWorker):
    def perform(self) -> None: ...
""",
        check_worker=_no_category,
    ),
    LintRule(
        code="SEW017",
        name="unknown-category",
        summary="A `feature_category` is not in `config/feature_categories.yml`.",
        fix="correct it, or add the category and its owner to the file",
        why="The class can be imported, but then no process boots: the file is read after the classes. Without such a "
        "file the rule finds nothing.",
        bad="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    feature_category = "global_serach"  # here

    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    feature_category = "global_search"

    def perform(self) -> None: ...
""",
        check_worker=_unknown_category,
    ),
    LintRule(
        code="SEW018",
        name="refused",
        summary="An attribute's name or value, or two values together, are refused when the class is created.",
        fix="write an allowed name and value: `application-worker attributes NAME` lists them",
        why="An import raises the same DeclarationError, but stops at the first; the linter finds all at once. Only "
        "the import checks values that the source does not show.",
        bad="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    urgency = "hihg"  # here
    retyr = 3  # here
    tags = "nightly"  # here

    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    urgency = "high"
    retry = 3
    tags = ("nightly",)

    def perform(self) -> None: ...
""",
        check_worker=_refused,
    ),
    LintRule(
        code="SEW037",
        name="misshaped-iteration",
        summary="An iterable worker defines perform, or lacks a method or the cursor.",
        fix="write def build_enumerator(self, ..., cursor) and def each_iteration(self, item, ...)",
        why="The framework's own perform iterates. Without the cursor a job would begin with its first item after each "
        "deploy. Such a class is refused when it is created.",
        bad="""
from framework import IterableWorker
from workers.base import TeamWorker


class PruneWorker(TeamWorker, IterableWorker):
    def build_enumerator(self, days: int):  # here
        return [(day, day) for day in range(days)]

    def each_iteration(self, day: int, days: int) -> None: ...
""",
        good="""
from framework import IterableWorker
from workers.base import TeamWorker


class PruneWorker(TeamWorker, IterableWorker):
    def build_enumerator(self, days: int, *, cursor: int | None):
        return [(day, day) for day in range(cursor or 0, days)]

    def each_iteration(self, day: int, days: int) -> None: ...
""",
        check_worker=_misshaped_iteration,
    ),
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
