"""What every class should say about itself: owner, idempotence, consistency, and nothing that is refused or has no effect."""

import ast

from framework.declare.attributes import ATTRIBUTES
from framework.declare.check import closest_name
from framework.declare.constraints import CONSTRAINTS
from framework.declare.declaration import NOT_OWNED
from framework.declare.no_effect import ATTRIBUTES_WITHOUT_EFFECT
from framework.declare.validators import InvalidValue
from framework.declare.worker import ApplicationWorker
from framework.devtools.lint.classes import AttributeValue, ClassIndex, SourceClass
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches, match_at
from framework.devtools.lint.rules.pushing import PUSHES
from framework.devtools.lint.workspace import UNKNOWN
from framework.messages import did_you_mean
from framework.typeguards import short_repr


def _not_idempotent(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("idempotent") is False:
        yield from match_at(worker.location_of("idempotent"), "{} does not say that running twice is as good as once")


def _not_owned(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("feature_category") == NOT_OWNED:
        yield from match_at(worker.location_of("feature_category"), "{} has no owner")


def _no_category(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("feature_category") is None:
        yield from match_at(
            worker.location_of("feature_category"), "{} has no feature_category, so it is refused when it is imported"
        )


def _unknown_category(worker: SourceClass, _: ClassIndex) -> Matches:
    known, category = worker.workspace.facts.categories, worker.value("feature_category")
    if known is not None and isinstance(category, str) and category not in (*known, NOT_OWNED):
        hint, file = did_you_mean(category, known), worker.workspace.facts.categories_file
        message = f"the feature_category {category!r} of {{}} is not in {file}{hint}"
        yield from match_at(worker.location_of("feature_category"), message)


def _refused(worker: SourceClass, _: ClassIndex) -> Matches:
    for name, said in worker.own_attributes.items():
        reason = _reason(name, said)
        if reason is not None:
            yield Match(
                worker.module, said.node, f"{worker.name}.{name} is refused when the class is created: {reason}"
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


def _reason(name: str, said: AttributeValue) -> str | None:
    if name.startswith("_") or name.isupper() or name == "perform":
        return None
    if name not in ATTRIBUTES:
        slip = closest_name(name, ATTRIBUTES)
        plain = said.value is not UNKNOWN or slip is not None
        return f"it is no attribute{did_you_mean(name, ATTRIBUTES)}" if plain and said.expression is not None else None
    if said.value is UNKNOWN:
        return None
    try:
        ATTRIBUTES[name].validator(said.value)
    except InvalidValue as error:
        return f"{short_repr(said.value)} is not allowed; allowed: {error}"
    return None


def _no_effect(worker: SourceClass, _: ClassIndex) -> Matches:
    for name, missing in ATTRIBUTES_WITHOUT_EFFECT.items():
        said = worker.attribute(name)
        if said is not None and said.value != vars(ApplicationWorker)[name]:
            yield from match_at(worker.location_of(name), f"{{}}.{name} has no effect yet: {missing}")


def _option_without_effect(site: CallSite) -> Matches:
    receiver = site.receiver if site.method in PUSHES else None
    while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        if receiver.func.attr == "set":
            for word in receiver.keywords:
                if word.arg is not None and word.arg in ATTRIBUTES_WITHOUT_EFFECT:
                    message = f"set({word.arg}=...) has no effect yet: {ATTRIBUTES_WITHOUT_EFFECT[word.arg]}"
                    yield Match(site.module, word.value, message)
        receiver = receiver.func.value


RULES = (
    LintRule(
        code="SEW001",
        name="idempotent",
        summary="A worker does not declare `idempotent = True`.",
        fix="make a second run harmless and say idempotent = True, or waive with what happens twice",
        why="Delivery is at least once: a process that is killed after its job ended and before it was acknowledged leaves the "
        "job to be run again. GitLab demands the word or a reason of every worker, so that each author has thought of it once.",
        bad='''
from framework import DeferOnHealth
from workers.base import TeamWorker


class ChargeWorker(TeamWorker):
    """Charge a customer: a second run charges twice."""

    idempotent = False  # here

    def perform(self, order_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ChargeWorker(TeamWorker):
    """Charge a customer, under a key that the bank knows from the first run."""

    idempotent = True

    def perform(self, order_id: int) -> None: ...


class GreetingWorker(TeamWorker):
    """Send a greeting."""

    idempotent = False  # SEW001: a second greeting after a crash is less bad than none

    def perform(self, user_id: int) -> None: ...
''',
        check_worker=_not_idempotent,
    ),
    LintRule(
        code="SEW013",
        name="not-owned",
        summary="A worker's feature category is `not_owned`.",
        fix="name the category of the team that is to be woken up, or waive with whose plumbing it is",
        why="An error of a class without an owner reaches no team. The word is for code that many features push, whose jobs "
        "then count for the feature that pushed them.",
        bad='''
from workers.base import TeamWorker


class ExportWorker(TeamWorker):
    """Write the export of a project."""

    feature_category = "not_owned"  # here

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ExportWorker(TeamWorker):
    """Write the export of a project."""

    feature_category = "global_search"

    def perform(self, project_id: int) -> None: ...


class DeleteFileWorker(TeamWorker):
    """Delete a file that some feature stored."""

    feature_category = "not_owned"  # SEW013: storage that every feature uses

    def perform(self, file_id: int) -> None: ...
''',
        check_worker=_not_owned,
    ),
    LintRule(
        code="SEW016",
        name="feature-category",
        summary="A worker that runs has no `feature_category`.",
        fix="say feature_category = ... in the class, or once in the abstract base of the team",
        why="Its import raises DeclarationError, and with it every process that loads it ends with status 78. Routing, log "
        "lines and error reports all ask for the owner.",
        bad='''
from framework import ApplicationWorker, DeferOnHealth


class ReindexWorker(ApplicationWorker):  # here
    """Write the search index of a project."""

    data_consistency = "sticky"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from framework import ApplicationWorker, DeferOnHealth


class SearchWorker(ApplicationWorker, abstract=True):
    """What the workers of the search team share."""

    feature_category = "global_search"
    data_consistency = "sticky"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")


class ReindexWorker(SearchWorker):
    """Write the search index of a project."""

    def perform(self, project_id: int) -> None: ...
''',
        check_worker=_no_category,
    ),
    LintRule(
        code="SEW017",
        name="unknown-category",
        summary="A `feature_category` is not in `config/feature_categories.yml`.",
        fix="correct it, or add the category and its owner to the file",
        why="The class can be imported, and then no process boots: the file is read after the classes. Found here, it costs a "
        "red line in the editor instead of a deployment. Without such a file nothing is found.",
        bad='''
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    feature_category = "global_serach"  # here

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    feature_category = "global_search"

    def perform(self, project_id: int) -> None: ...
''',
        check_worker=_unknown_category,
    ),
    LintRule(
        code="SEW018",
        name="refused",
        summary="An attribute's name or value, or two values together, that are refused when the class is created.",
        fix="write a name and a value that are allowed: `application-worker attributes NAME` tells",
        why="The same is a DeclarationError at import. But an import stops at the first, and an editor imports nothing: here "
        "all of them are found at once. Values that only running the code would tell are left to it.",
        bad='''
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    urgency = "hihg"  # here
    retyr = 3  # here
    tags = "nightly"  # here

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    """Write the search index of a project."""

    urgency = "high"
    retry = 3
    tags = ("nightly",)

    def perform(self, project_id: int) -> None: ...
''',
        check_worker=_refused,
    ),
    LintRule(
        code="SEW031",
        name="no-effect",
        summary="A worker, or a push, declares what has no effect in this release.",
        fix="leave it out until a release acts on it",
        why="A class that declares `timeout` looks as if its runs were stopped, and a review takes it for done. The attribute is "
        "accepted so that code for a later release loads in this one; Python says the same at import, as a `NoEffectWarning`.",
        bad='''
from workers.base import TeamWorker


class RenderWorker(TeamWorker):
    """Draw a poster, within a minute."""

    timeout = 60  # here

    def perform(self, poster_id: int) -> None: ...


def render(poster_id: int) -> None:
    RenderWorker.set(expires_in=300).perform_async(poster_id)  # here
''',
        good='''
from workers.base import TeamWorker


class RenderWorker(TeamWorker):
    """Draw a poster."""

    def perform(self, poster_id: int) -> None: ...


def render(poster_id: int) -> None:
    RenderWorker.perform_async(poster_id)
''',
        check_worker=_no_effect,
        check_call=_option_without_effect,
    ),
)
