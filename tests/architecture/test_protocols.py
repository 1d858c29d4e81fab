"""Hold the interfaces of the package down: a Protocol has a reason, and a constructor takes objects instead of functions."""

import ast
from collections.abc import Iterator

from tests.architecture.test_house_rules import SOURCES, relative
from tests.syntax import nodes_of

FROM_APPLICATIONS = "applications write such a class, or such a function"
FOR_TYPE_CHECKERS = "type checkers compare calls with the parameters of the worker"
OF_ROOMS = "rooms fill it, and the core does not know them"
LOWER = "a lower layer reports to it, and tests give it one that records"
TWO = "two classes of the package have it"

REASONS = {
    "AdmissionPolicy": FROM_APPLICATIONS,
    "BlobStore": FROM_APPLICATIONS,
    "ClientMiddleware": FROM_APPLICATIONS,
    "FlagSource": FROM_APPLICATIONS,
    "HealthIndicator": FROM_APPLICATIONS,
    "HealthQuery": FROM_APPLICATIONS,
    "LoadSignal": FROM_APPLICATIONS,
    "PauseStrategy": FROM_APPLICATIONS,
    "ServerMiddleware": FROM_APPLICATIONS,
    "Iterates": FOR_TYPE_CHECKERS,
    "Performs": FOR_TYPE_CHECKERS,
    "PerformsWork": FOR_TYPE_CHECKERS,
    "Returns": FOR_TYPE_CHECKERS,
    "_HasDeclaration": FOR_TYPE_CHECKERS,
    "GroupedPolicy": OF_ROOMS,
    "RememberedPolicy": OF_ROOMS,
    "JobLimiter": OF_ROOMS,
    "JobPermit": OF_ROOMS,
    "JobStory": OF_ROOMS,
    "ProtectedArguments": OF_ROOMS,
    "PushLocks": OF_ROOMS,
    "Waiter": OF_ROOMS,
    "CancellationState": LOWER,
    "FetchEvents": LOWER,
    "JobContext": LOWER,
    "PollEvents": LOWER,
    "ClientPort": "the client of a process, that of a test, and those of batches that are being built",
    "Closeable": TWO,
    "Flags": TWO,
    "JobLogger": TWO,
    "LineLog": TWO,
    "LineWriter": TWO,
    "MigrationRule": TWO,
    "PayloadBuilder": TWO,
    "Statements": TWO,
    "Tracker": TWO,
    "Transaction": TWO,
    "WaitingJobs": TWO,
}
"""Why each Protocol is no class. A Protocol with one implementation is that class."""

MAX_PROTOCOLS = 45

MAX_CALLABLES = 52
"""Lower it when a function goes. Functions of applications (retry, scopes, lint rules, handlers) are some 25 of them."""


def protocols() -> set[str]:
    """Return the names of all Protocols of the package."""
    return {
        node.name
        for path in SOURCES
        for node in nodes_of(path, ast.ClassDef)
        if any("Protocol" in ast.unparse(base) for base in node.bases)
    }


def test_every_protocol_has_a_reason() -> None:
    assert protocols() - REASONS.keys() == set(), "give it two implementations and a reason here, or use the class"


def test_protocols_are_few() -> None:
    assert len(protocols()) <= MAX_PROTOCOLS


def callables() -> Iterator[str]:
    """Return the parameters of constructors, and the fields of dataclasses, that are functions."""
    for path in SOURCES:
        for node in nodes_of(path, ast.ClassDef):
            is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    for one in (*item.args.args, *item.args.kwonlyargs):
                        if one.annotation is not None and "Callable" in ast.unparse(one.annotation):
                            yield f"{relative(path)}: {node.name}.{one.arg}"
                elif is_dataclass and isinstance(item, ast.AnnAssign):
                    kind = ast.unparse(item.annotation)
                    if "Callable" in kind and "ClassVar" not in kind:
                        yield f"{relative(path)}: {node.name}.{ast.unparse(item.target)}"


def test_constructors_take_objects() -> None:
    """A bundle of functions is the object that has them as methods."""
    found = sorted(callables())
    assert len(found) <= MAX_CALLABLES, "\n".join(found)


def test_core_imports_no_feature() -> None:
    """import-linter holds it too, but lets a layer import what stands below it."""
    core = "declare push route shard fetch execute finish recover schedule process wire store settings telemetry middleware"
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if relative(path).split("/")[1] in core.split()
        for node in nodes_of(path, ast.Import, ast.ImportFrom)
        if "framework.features" in ast.unparse(node)
    ]
    assert not wrong
