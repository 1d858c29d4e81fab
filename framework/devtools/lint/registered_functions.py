"""Show functions that ``background`` registers to the rules, each as the worker class that stands for it."""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from framework.declare.names import class_name_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef

BACKGROUND = "framework.background"
_NO_ATTRIBUTES = ("base", "loader")


class RegisteredFunction(NamedTuple):
    """A function, and the class that stands for it: keywords as attributes, the function as ``perform``.

    ``function`` is None for a function of another module, ``owner`` the class of a method.
    """

    node: ast.ClassDef
    function: _Function | None
    owner: ast.ClassDef | None


def registered_functions(
    body: list[ast.stmt],
    functions: Mapping[str, _Function],
    classes: Mapping[str, ast.ClassDef],
    dotted: Callable[[ast.expr], str | None],
) -> Iterator[RegisteredFunction]:
    """Yield the registered functions of a module: those with the decorator, and those in calls at the top level."""
    for function in functions.values():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and dotted(decorator.func) == BACKGROUND:
                yield RegisteredFunction(_class_of(function, decorator, function), function, None)
    for statement in body:
        call = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) else None
        if isinstance(call, ast.Call) and call.args and dotted(call.func) == BACKGROUND:
            named, owner = _find(call.args[0], functions, classes)
            yield RegisteredFunction(_class_of(statement, call, named), named, owner)


def _find(
    expression: ast.expr, functions: Mapping[str, _Function], classes: Mapping[str, ast.ClassDef]
) -> tuple[_Function | None, ast.ClassDef | None]:
    match expression:
        case ast.Name(id=name) if name in functions:
            return functions[name], None
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in classes:
            found = [one for one in classes[owner].body if isinstance(one, _Function) and one.name == name]
            return (found[-1], classes[owner]) if found else (None, None)
        case _:
            return None, None


def _class_of(place: ast.stmt, call: ast.Call, function: _Function | None) -> ast.ClassDef:
    name = class_name_of(function.name) if function is not None else _last_name(call.args[0])
    base: ast.expr = ast.Attribute(ast.Name("framework", ast.Load()), "ApplicationWorker", ast.Load())
    body: list[ast.stmt] = []
    for word in call.keywords:
        if word.arg == "base":
            base = word.value
        elif word.arg is not None and word.arg not in _NO_ATTRIBUTES:
            body.append(ast.copy_location(ast.Assign([ast.Name(word.arg, ast.Store())], word.value), word))
    if function is not None:
        perform = copy.copy(function)
        perform.name = "perform"
        body.append(perform)
    else:
        # The name is made from the module of the function, which is not known here.
        unknown = ast.Name("__unknown__", ast.Load())
        body.insert(0, ast.copy_location(ast.Assign([ast.Name("wire_name", ast.Store())], unknown), call))
    made = ast.ClassDef(name=name, bases=[base], keywords=[], body=body, decorator_list=[])
    return ast.fix_missing_locations(ast.copy_location(made, place))


def _last_name(expression: ast.expr) -> str:
    name = expression.attr if isinstance(expression, ast.Attribute) else ""
    return class_name_of(expression.id if isinstance(expression, ast.Name) else name)
