"""Keep the functions that compute the arguments of steps, by their names. A stored workflow never imports anything."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from framework.errors import WorkflowError
from framework.messages import did_you_mean
from framework.typeguards import short_repr

F = TypeVar("F", bound=Callable[..., Iterable[Sequence[Any]]])

# By ``module:name``. Written when modules are imported (decision 150).
_functions: dict[str, Callable[..., Iterable[Sequence[Any]]]] = {}


def computes_arguments(function: F, /) -> F:
    """Let workflows call this function of a module: it returns or yields the arguments of each job of a step (``computed``).

    Raises:
        WorkflowError: it is a method, a local function, or async.
    """
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not inspect.isfunction(function) or "." in name or "<" in name:
        raise WorkflowError(
            "",
            f"@computes_arguments on {short_repr(function)}: decorate a function of a module, as it is called by its name",
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise WorkflowError(
            "", f"@computes_arguments on {module}.{name}: it is async; return or yield the arguments in a def"
        )
    _functions[f"{module}:{name}"] = function
    return cast("F", function)


def path_of(function: object) -> str:
    """Return the name of a decorated function. Raises WorkflowError for any other object."""
    path = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    if _functions.get(path) is not function:
        raise WorkflowError("", f"computed({short_repr(function)}): decorate the function with @computes_arguments")
    if path.startswith("__main__:"):
        raise WorkflowError(
            "", f"computed({short_repr(function)}): move it to a module: worker processes do not have this program"
        )
    return path


def function_of(workflow: str, path: str) -> Callable[..., Iterable[Sequence[Any]]]:
    """Return a function by its name. Raises WorkflowError."""
    found = _functions.get(path)
    if found is None:
        raise WorkflowError(
            workflow,
            f"no function {path} is decorated with @computes_arguments in this process{did_you_mean(path, _functions)}. Deploy it "
            "again, or cancel the workflow",
        )
    return found
