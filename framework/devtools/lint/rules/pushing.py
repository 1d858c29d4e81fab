"""Check pushes (context, bulk, await), the parameters of ``perform``, and the arguments that logs show."""

import ast
import re
from collections.abc import Iterator

from framework.declare.annotations import JSON_SUBSTITUTES
from framework.devtools.lint.classes import CURSOR, ENUMERATOR, ClassIndex, SourceClass
from framework.devtools.lint.module import Function, Module
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches
from framework.text import with_article
from framework.typeguards import is_tuple

_ONE = ("perform_async", "perform_in", "perform_at")
_MANY = ("perform_bulk", "perform_bulk_in", "perform_bulk_for", "perform_bulk_stream")
_NOT_AWAITABLE = (*_ONE, *_MANY, "perform_with_capacity")
_BY_NAME = "framework.enqueue"
_TWINS = {f"a{name}": name for name in (*_ONE, *_MANY)}
"""Awaitable method -> its twin."""

PUSHES = frozenset({*_ONE, *_MANY, *_TWINS})
"""The methods that write jobs to Redis."""


def _plain_name(site: CallSite) -> str | None:
    """Return the called method; of an awaitable push, its twin."""
    return _TWINS.get(site.method or "", site.method)


def _has_context(site: CallSite) -> bool:
    if site.keyword("context") is not None:
        return True
    receiver = site.receiver
    while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        if receiver.func.attr == "set" and any(word.arg in ("context", None) for word in receiver.keywords):
            return True
        receiver = receiver.func.value
    return any(_is_bound(site.module.dotted(manager.func)) for manager in site.context_managers())


def _is_bound(name: str | None) -> bool:
    return name is not None and name.startswith("framework.") and name.endswith("context.bound")


def _cron_context(site: CallSite) -> Matches:
    if _plain_name(site) in _ONE and site.worker is not None and site.worker.is_cron and not _has_context(site):
        yield Match(
            site.module,
            site.node,
            f"{site.worker.name} is pushed by a schedule, and the job it pushes here has no context",
        )


def _bulk_context(site: CallSite) -> Matches:
    if _plain_name(site) in _MANY and not _has_context(site):
        yield Match(site.module, site.node, f"{site.method} pushes many jobs that log lines cannot distinguish")


def _one_by_one(site: CallSite) -> Matches:
    if _plain_name(site) not in _ONE:
        return
    outer = site.module.parents.get(site.node)
    if isinstance(outer, ast.Await):
        outer = site.module.parents.get(outer)
    loop = site.module.parents.get(outer) if isinstance(outer, ast.Expr) else None
    alone = isinstance(loop, ast.For) and loop.body == [outer] and not loop.orelse
    if alone or isinstance(outer, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield Match(site.module, site.node, "this loop pushes its jobs one by one, with a round trip each")


def _awaited(site: CallSite) -> Matches:
    if not isinstance(site.module.parents.get(site.node), ast.Await):
        return
    name = site.method
    if site.module.dotted(site.node.func) == _BY_NAME:
        yield Match(site.module, site.node, "enqueue is no coroutine: it pushes before the await. Its twin is aenqueue")
    elif name == "perform_inline":
        yield Match(site.module, site.node, "perform_inline is no coroutine: the job runs before the await")
    elif name in _NOT_AWAITABLE:
        yield Match(site.module, site.node, f"{name} is no coroutine: it pushes before the await. Its twin is a{name}")


_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|token|api_?key|email|authorization|iban|ssn)(_|$)", re.IGNORECASE
)
_MODULES_OF = {
    "datetime": "datetime", "date": "datetime", "time": "datetime", "timedelta": "datetime", "Decimal": "decimal",
    "UUID": "uuid", "Path": "pathlib", "Iterable": "collections.abc", "Collection": "collections.abc",
}  # fmt: skip
_NOT_JSON = {
    **{f"{_MODULES_OF.get(name, '')}.{name}".lstrip("."): text for name, text in JSON_SUBSTITUTES.items()},
    "complex": "a list of two floats",
    **dict.fromkeys(
        ("typing.Tuple", "typing.Set", "typing.FrozenSet", "typing.Iterable", "typing.Collection"), "a list"
    ),
}
_OBJECTS = frozenset(
    {"dict", "typing.Dict"}
    | {f"{module}.{name}" for module in ("typing", "collections.abc") for name in ("Mapping", "MutableMapping")}
)
_NO_KEYS = frozenset({"int", "float", "bool", "object", "dict", "list"})
_TYPED_DICTS = frozenset({"typing.TypedDict", "typing_extensions.TypedDict"})
_ENUMS = frozenset({"enum.Enum", "enum.StrEnum", "enum.IntEnum", "enum.Flag", "enum.IntFlag"})
_MODELS = re.compile(r"(^|\.)models?\.[A-Z]\w*$")


def _types(worker: SourceClass, classes: ClassIndex) -> Matches:
    if worker.value("strict_arguments") in ("warn", "off"):
        return
    for owner, function in worker.handlers():
        if not owner.module.linted:
            continue
        keywords = [one for one in function.args.kwonlyargs if not _is_cursor(one, function)]
        for extra in (*keywords, *([function.args.kwarg] if function.args.kwarg else [])):
            message = f"{owner.name}.{function.name}: {extra.arg!r} cannot be passed: a job carries a list of positions"
            yield Match(
                owner.module,
                _anchor(extra, function),
                message,
                "make it an ordinary parameter, or take a dict[str, ...]",
            )
        for argument, leaf in _annotated(function):
            name = classes.resolve_name(owner.module, leaf) or ""
            instead = _NOT_JSON.get(name) or _enum(owner.module, leaf, classes)
            if instead is not None:
                kind = with_article(name.rpartition(".")[2])
                message = f"{owner.name}.{function.name}: {argument.arg!r} is {kind}, which JSON cannot carry"
                yield Match(owner.module, leaf, message, f"take {instead}")
    yield from _keys(worker, classes)


def _objects(worker: SourceClass, classes: ClassIndex) -> Matches:
    for owner, function in worker.handlers():
        if not owner.module.linted:
            continue
        for argument, leaf in _annotated(function):
            name = classes.resolve_name(owner.module, leaf) or ""
            found = classes.find(name)
            is_object = found is not None and not _is_kind(found, _TYPED_DICTS) and not _is_kind(found, _ENUMS)
            if is_object or (found is None and _MODELS.search(name)):
                message = (
                    f"{owner.name}.{function.name}: {argument.arg!r} is an object of class {name.rpartition('.')[2]}"
                )
                yield Match(owner.module, leaf, message)


def _anchor(argument: ast.arg, function: Function) -> ast.expr | ast.stmt:
    return argument.annotation or function


def _keys(worker: SourceClass, classes: ClassIndex) -> Matches:
    """Yield dicts with keys that are no str: a key of a JSON object is always a str."""
    for owner, function in worker.handlers():
        for argument in _parameters(function) if owner.module.linted else ():
            for node in _nodes(argument.annotation) if argument.annotation is not None else ():
                key = _key_of(node, owner.module, classes)
                parts = _nodes(key) if key is not None else ()
                wrong = next(filter(None, (_non_string_key(part, owner.module, classes) for part in parts)), None)
                if wrong:
                    place = f"{owner.name}.{function.name}: {argument.arg!r}"
                    message = f"{place} has keys of {wrong}, but keys of a JSON object are str"
                    yield Match(owner.module, node, message, "take a dict[str, ...], or a list of pairs")


def _key_of(node: ast.expr, module: Module, classes: ClassIndex) -> ast.expr | None:
    match node:
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[key, _])) if (
            classes.resolve_name(module, value) in _OBJECTS
        ):
            return key
        case _:
            return None


def _non_string_key(node: ast.expr, module: Module, classes: ClassIndex) -> str | None:
    """Return the part of a key's annotation that is known to be no str, as text; else None."""
    match node:
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=declared):
            words = declared.elts if isinstance(declared, ast.Tuple) else [declared]
            other = (one.value for one in words if isinstance(one, ast.Constant) and not isinstance(one.value, str))
            return next((f"Literal[{word!r}]" for word in other), None)
        case ast.Constant(value=None):
            return "None"
        case _:
            name = classes.resolve_name(module, node) if isinstance(node, ast.Name | ast.Attribute) else None
            return name if name in _NO_KEYS else None


def _annotated(function: Function) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Yield every parameter with each name in its annotation, without the members of Literal and the metadata of Annotated."""
    for argument in _parameters(function):
        for node in _nodes(argument.annotation) if argument.annotation is not None else ():
            if isinstance(node, ast.Name | ast.Attribute):
                yield argument, node


def _parameters(function: Function) -> Iterator[ast.arg]:
    arguments = function.args
    found = (*arguments.posonlyargs, *arguments.args, *([arguments.vararg] if arguments.vararg else []))
    yield from (one for one in found if not _is_cursor(one, function))


def _is_cursor(argument: ast.arg, function: Function) -> bool:
    """Return whether the parameter is the cursor of an iterable worker, which is no argument of the job."""
    return function.name == ENUMERATOR and argument.arg == CURSOR


def _nodes(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yield every part of an annotation that is a type; quoted annotations are parsed."""
    todo = [annotation]
    for node in todo:
        yield node
        match node:
            case ast.Constant(value=str() as text):
                todo.extend(_quoted(text, node))
            case ast.BinOp():
                todo += [node.left, node.right]
            case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
                pass
            case ast.Subscript(
                value=ast.Name(id="Annotated") | ast.Attribute(attr="Annotated"), slice=ast.Tuple(elts=parts)
            ):
                todo += parts[:1]
            case ast.Subscript():
                todo += [node.value, node.slice]
            case ast.Tuple() | ast.List():
                todo += node.elts
            case _:
                pass


def _quoted(text: str, node: ast.expr) -> Iterator[ast.expr]:
    try:
        inner = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for one in ast.walk(inner):
        ast.copy_location(one, node)
    yield inner


def _enum(module: Module, leaf: ast.expr, classes: ClassIndex) -> str | None:
    found = classes.find(classes.resolve_name(module, leaf) or "")
    return "Literal[...] of its values, and pass its .value" if found is not None and _is_kind(found, _ENUMS) else None


def _is_kind(found: SourceClass, kinds: frozenset[str]) -> bool:
    return any(owner.module.dotted(base) in kinds for owner in found.mro for base in owner.node.bases)


def _secrets(worker: SourceClass, _: ClassIndex) -> Matches:
    declared = worker.own_attributes.get("loggable_arguments")
    if declared is None or not is_tuple(declared.value):
        return
    for name in declared.value:
        if isinstance(name, str) and _SECRET.search(name):
            yield Match(
                worker.module, declared.node, f"{worker.name} shows its argument {name!r} to every reader of logs"
            )
            return


def _flags(site: CallSite) -> Matches:
    flag = None
    if site.name in ("framework.flags.enabled", "framework.flags.aenabled"):
        flag = site.node.args[0] if site.node.args else site.keyword("name")
    elif site.name is not None and site.name.startswith("framework.") and site.name.endswith(".Deduplicate"):
        flag = site.keyword("feature_flag")
    if flag is not None and not (isinstance(flag, ast.Constant) and isinstance(flag.value, str | None)):
        yield Match(site.module, flag, "the name of this feature flag is computed, so a search for it fails")


RULES = (
    LintRule(
        code="SEW002",
        name="cron-context",
        summary="A worker of the namespace `cronjob` pushes a job without a context.",
        fix="push inside `with bound(project=...)`, or through set(context={...})",
        why="A job inherits the context (user, project, request) of its caller, and a schedule has none. The logs "
        "then do not show whose job failed.",
        bad="""
from workers.base import TeamWorker
from workers.invites import CloseInviteWorker


class ExpireInvitesWorker(TeamWorker):
    queue_namespace = "cronjob"
    retry = False

    def perform(self) -> None:
        oldest = 42
        CloseInviteWorker.perform_async(oldest)  # here
""",
        good="""
from framework.context import bound
from workers.base import TeamWorker
from workers.invites import CloseInviteWorker


class ExpireInvitesWorker(TeamWorker):
    queue_namespace = "cronjob"
    retry = False

    def perform(self) -> None:
        oldest = 42
        with bound(invite=oldest):
            CloseInviteWorker.perform_async(oldest)
""",
        check_call=_cron_context,
    ),
    LintRule(
        code="SEW003",
        name="bulk-context",
        summary="A bulk push has no context.",
        fix="use perform_bulk_for(..., context=lambda one: {...}), or set(context={...}) or `with bound(...)` for one "
        "context of all jobs",
        why="Only a context shows which customer's job of ten thousand hangs, and the bulk push knows it for all "
        "jobs. GitLab allows only the bulk methods with contexts.",
        bad="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    CloseInviteWorker.perform_bulk([(invite,) for invite in invites])  # here
""",
        good="""
from workers.invites import CloseInviteWorker


def close_all(project: str, invites: list[int]) -> None:
    CloseInviteWorker.set(context={"project": project}).perform_bulk([(invite,) for invite in invites])
""",
        check_call=_bulk_context,
    ),
    LintRule(
        code="SEW028",
        name="push-loop",
        summary="A loop does nothing but push.",
        fix="use perform_bulk_for(...): a thousand jobs per round trip",
        why="Ten thousand pushes are ten thousand round trips, seconds in which the job holds its slot; in bulk they "
        "are ten. A bulk push that fails halfway names the pushed jobs; a loop does not.",
        bad="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    for invite in invites:
        CloseInviteWorker.perform_async(invite)  # here
""",
        good="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    CloseInviteWorker.perform_bulk_for(
        invites,
        arguments=lambda invite: CloseInviteWorker.arguments(invite),
        context=lambda invite: {"invite": invite},
    )
""",
        check_call=_one_by_one,
    ),
    LintRule(
        code="SEW038",
        name="awaited-push",
        summary="A coroutine awaits a push that is no coroutine.",
        fix="write `await Worker.aperform_async(...)`, or leave out the await",
        why="The push has been made when the `await` fails with a `MisuseError`: a caller that tries again pushes a second job.",
        bad="""
from workers.invites import CloseInviteWorker


async def close(invite: int) -> None:
    await CloseInviteWorker.perform_async(invite)  # here
""",
        good="""
from workers.invites import CloseInviteWorker


async def close(invite: int) -> None:
    await CloseInviteWorker.aperform_async(invite)
""",
        check_call=_awaited,
    ),
    LintRule(
        code="SEW015",
        name="flag-name",
        summary="The name of a feature flag is computed.",
        fix="write the name as one string",
        why="A search does not find a computed name. The flag outlives its purpose, and one day an operator switches "
        "it without knowing its effect.",
        bad="""
from framework import Deduplicate
from workers.base import TeamWorker

TEAM = "search"


class ReindexWorker(TeamWorker):
    deduplicate = Deduplicate(feature_flag=f"{TEAM}_dedup", including_scheduled=False)  # here

    def perform(self) -> None: ...
""",
        good="""
from framework import Deduplicate
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    deduplicate = Deduplicate(feature_flag="search_dedup", including_scheduled=False)

    def perform(self) -> None: ...
""",
        check_call=_flags,
    ),
    LintRule(
        code="SEW022",
        name="parameter-types",
        summary="`perform` or a handler of an older version takes a type that JSON cannot carry in a list.",
        fix="use what JSON carries: numbers, str, bool, None, lists and dicts with str keys",
        why="Other releases and Ruby read jobs as JSON. The class is refused at import, unless strict_arguments is "
        "'warn' or 'off'; the linter also names a replacement.",
        bad="""
from datetime import datetime

from workers.base import TeamWorker


class ReportWorker(TeamWorker):
    def perform(self, since: datetime, ids: set[int]) -> None: ...  # here

    def perform_v1(self, *, since: str) -> None: ...  # here
""",
        good="""
from workers.base import TeamWorker


class ReportWorker(TeamWorker):
    def perform(self, since: str, ids: list[int]) -> None: ...
""",
        check_worker=_types,
    ),
    LintRule(
        code="SEW023",
        name="argument-objects",
        summary="`perform` takes an object of the application instead of its id.",
        fix="take the id and load the object in perform; a few plain facts go into a TypedDict",
        why="A job may wait for hours: the object has changed or is gone, and the next release has other fields in "
        "its class. An id is small, stays valid and identifies the object in the logs.",
        bad="""
from dataclasses import dataclass

from workers.base import TeamWorker


@dataclass
class User:
    id: int
    name: str


class WelcomeWorker(TeamWorker):
    def perform(self, user: User) -> None: ...  # here
""",
        good="""
from workers.base import TeamWorker


class WelcomeWorker(TeamWorker):
    def perform(self) -> None: ...
""",
        check_worker=_objects,
    ),
    LintRule(
        code="SEW029",
        name="loggable-secret",
        summary="`loggable_arguments` names what looks like a secret or personal data.",
        fix="remove it from loggable_arguments; better, pass an id",
        why="Arguments are filtered by default, because logs have more readers than the database, are kept longer and "
        "go to other companies.",
        bad="""
from workers.base import TeamWorker


class InviteWorker(TeamWorker):
    loggable_arguments = ("project_id", "email")  # here

    def perform(self, project_id: int, email: str) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class InviteWorker(TeamWorker):
    loggable_arguments = ("role",)

    def perform(self, invite_id: int, role: str) -> None: ...
""",
        check_worker=_secrets,
    ),
)
