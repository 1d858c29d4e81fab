"""The signature of a worker's ``perform``, or of a handler of an older version, as a list of positions. Built once per class."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from framework.declare.annotations import ArgumentValidators, Validate, check_json_annotation, resolve_annotations
from framework.declare.misuse import advice
from framework.declare.strict_json import (
    CONTAINERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_PARSED_DEPTH,
    PLAIN_TYPES,
    NotJsonError,
    check_strict_json,
    is_strict_parsed,
    to_json_value,
)
from framework.declare.validators import ErrorCollector, InvalidValue
from framework.errors import ArgumentsError, DeclarationError
from framework.text import did_you_mean, format_count, nearest
from framework.typeguards import short_repr
from framework.wire.json import dumps_exact, dumps_ordered, loads

# A float may be no number.
_SIMPLE_TYPES = PLAIN_TYPES - {float}
_NON_STRICT_HINT = (
    "(Before the callers are corrected: strict_arguments = 'warn' in the class; the method then gets the JSON form.)"
)


@dataclass(frozen=True, slots=True)
class JobSignature:
    """The parameters of ``method``. ``names`` are its positions, ``varargs`` the name of ``*args`` where there is one."""

    worker: str
    method: str
    names: tuple[str, ...]
    required: int
    positional_only: int
    varargs: str | None
    defaults: tuple[Any, ...]
    json_defaults: tuple[bytes | None, ...]
    """The defaults as JSON, as they were when the class was created; ``None`` for a default that JSON cannot carry."""
    annotations: tuple[Any, ...]
    """The types of the positions: Any where the annotation is not used as a rule. The type of ``varargs`` is the last."""
    validate: Validate | None
    validate_bulk: Validate | None
    """``validate`` for the positions of many jobs at once."""
    validate_varargs: Validate | None

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the call as a list of positions. A position that keywords skip gets the parameter's default.

        Raises ArgumentsError when an argument is missing, unknown, given twice or too much. ``check`` checks the types.
        """
        bound = list(args)
        if kwargs:
            self._bind_keywords(bound, kwargs)
        if not self.required <= len(bound) <= len(self.names):
            self.check_count(bound)
        return bound

    def encode(self, args: list[Any]) -> bytes:
        """Check the list as ``check`` does and return it as JSON, for a payload.

        Raises:
            ArgumentsError: as ``check``.
            PayloadError: the nesting is deeper than readers allow, or another thread has changed the value meanwhile.
        """
        # Ids and texts need neither the walk of `check` nor that of `dumps_exact`. Arguments that fail here are checked below.
        for value in args:
            if type(value) not in _SIMPLE_TYPES:
                break
        else:
            count = len(args)
            untyped = self.validate is None and self.varargs is not None and count >= self.required
            if self.validate_varargs is None and (count == len(self.names) or untyped):
                try:
                    if self.validate is not None:
                        self.validate(tuple(args))
                    data = to_json(args)
                # A wrong type (a ValidationError), half a surrogate pair, or an integer of too many digits.
                except ValueError:
                    data = b""
                if 0 < len(data) < MAX_DIGITS:
                    return data
        self.check(args)
        return dumps_exact(args, outer_levels=1)

    def check(self, args: list[Any], *, parsed: bool = False, surely_strict: bool = False) -> None:
        """Raise ArgumentsError unless the list fits the method and survives JSON unchanged. ``parsed``: it comes from JSON.

        With ``surely_strict`` only the types are checked. An int passes for a float, a bool never for an int. The error names
        worker, argument and reason, never the argument's value, as messages are logged. Another program may have pushed what is
        ``parsed``, so it may be nested as deep as the parser reads.
        """
        if not self.required <= len(args) <= len(self.names):
            self.check_count(args)
        index = 0
        try:
            for index, value in enumerate(args):  # noqa: B007 - read by the handler
                if not (parsed and type(value) in CONTAINERS and (surely_strict or is_strict_parsed(value))):
                    check_strict_json(value, MAX_PARSED_DEPTH if parsed else MAX_DEPTH)
        except NotJsonError as error:
            raise ArgumentsError(self.worker, _reason_with_path(error), argument=self._argument_name(index)) from None
        if self.validate is not None or self.validate_varargs is not None:
            self._check_types(args)

    def without_defaults(self, args: list[Any]) -> list[Any]:
        """Return the arguments of the shortest call that binds as this one: without trailing arguments that equal their defaults."""
        count = len(args)
        if count > len(self.names):
            return args
        while count > self.required and self._is_default(count - 1, args[count - 1]):
            count -= 1
        return args[:count]

    def with_defaults(self, args: list[Any]) -> list[Any]:
        """Return the arguments of the longest call that binds as this one: missing arguments get their defaults.

        The list ends before a default that JSON cannot carry.
        """
        given = list(args)
        for default in self.json_defaults[max(0, len(args) - self.required) :]:
            if default is None or len(given) < self.required:
                break
            given.append(loads(default))
        return given

    def _is_default(self, index: int, value: Any) -> bool:
        """Whether an argument equals its default as JSON: ``1``, ``1.0`` and ``True`` are three things."""
        default = self.json_defaults[index - self.required]
        return default is not None and dumps_ordered(value) == default

    def to_json_values(self, args: list[Any]) -> list[Any]:
        """Return the arguments as JSON gives them back, fitting or not.

        Raises ArgumentsError for a wrong number of arguments, and for a value that JSON cannot carry.
        """
        self.check_count(args)
        form: list[Any] = []
        for index, value in enumerate(args):
            try:
                form.append(to_json_value(value))
            except NotJsonError as error:
                raise ArgumentsError(
                    self.worker, _reason_with_path(error), argument=self._argument_name(index)
                ) from None
        return form

    def strictness_problems(self, args: list[Any], json_values: list[Any]) -> dict[str, str]:
        """Map each argument that is not strict to the reason: JSON changes it, or its value in ``json_values`` does not fit."""
        found: dict[str, str] = {}
        for index, value in enumerate(args):
            try:
                check_strict_json(value)
            except NotJsonError as error:
                found[self._argument_name(index)] = _reason_with_path(error)
        for misfit in self._type_errors(json_values):
            found.setdefault(misfit.argument or "", misfit.reason)
        return found

    def all_valid(self, jobs: Sequence[Sequence[Any]]) -> bool:
        """Whether all jobs have the right number of arguments, of the right types. ``check`` names the wrong one and the reason."""
        counts = set(map(len, jobs))
        full = len(self.names)
        if min(counts) < self.required or (max(counts) > full and self.varargs is None):
            return False
        try:
            if self.validate_bulk is not None:
                padded = counts != {full}
                self.validate_bulk(
                    [self._pad_with_defaults(args) for args in jobs] if padded else list(map(tuple, jobs))
                )
            if self.validate_varargs is not None:
                for args in jobs:
                    self.validate_varargs(list(args[full:]))
        except ValidationError:
            return False
        return True

    def _pad_with_defaults(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the positions with defaults for missing arguments, so that one adapter of full length serves every call."""
        return (*args[: len(self.names)], *self.defaults[len(args) - self.required :])

    def _check_types(self, args: list[Any]) -> None:
        count = len(self.names)
        try:
            if self.validate is not None:
                self.validate(tuple(args) if len(args) == count else self._pad_with_defaults(args))
            if self.validate_varargs is not None:
                self.validate_varargs(args[count:])
        except ValidationError:
            raise next(self._type_errors(args)) from None

    def _type_errors(self, args: list[Any]) -> Iterator[ArgumentsError]:
        count = len(self.names)
        for validate, values, offset in (
            (self.validate, self._pad_with_defaults(args), 0),
            (self.validate_varargs, args[count:], count),
        ):
            try:
                if validate is not None:
                    validate(values)
            except ValidationError as error:
                yield from (self._to_arguments_error(one, args, offset) for one in _error_details(error))

    def _bind_keywords(self, bound: list[Any], kwargs: Mapping[str, Any]) -> None:
        given = len(bound)
        places: dict[int, Any] = {}
        for name, value in kwargs.items():
            if name not in self.names:
                hint = did_you_mean(name, self.names)
                if not hint and (word := advice(name, "option")):
                    hint = f". {word}; other options go into `set(...)` before the push"
                raise ArgumentsError(self.worker, f"is not a parameter of {self.method}{hint}", argument=name)
            index = self.names.index(name)
            if index < self.positional_only:
                reason = f"is positional-only in {self.method}; give it by position"
                raise ArgumentsError(self.worker, reason, argument=name)
            if index < given:
                raise ArgumentsError(self.worker, "is given twice, by position and by name", argument=name)
            places[index] = value
        for index in range(given, max(places) + 1):
            if index in places:
                bound.append(places[index])
            elif index >= self.required:
                bound.append(copy.deepcopy(self.defaults[index - self.required]))
            else:
                raise ArgumentsError(self.worker, "is missing", argument=self.names[index])

    def check_count(self, args: Sequence[Any]) -> None:
        """Raise ArgumentsError unless the method can be called with so many arguments."""
        count, most = len(args), len(self.names)
        if count < self.required:
            raise ArgumentsError(self.worker, "is missing", argument=self.names[count])
        if count > most and self.varargs is None:
            given = f"{count} {'was' if count == 1 else 'were'} given"
            raise ArgumentsError(self.worker, f"{self.method} takes {format_count(most, 'argument')}, {given}")

    def _argument_name(self, index: int) -> str:
        return self.names[index] if index < len(self.names) else f"*{self.varargs}[{index - len(self.names)}]"

    def _to_arguments_error(self, error: ErrorDetails, args: list[Any], offset: int) -> ArgumentsError:
        position, *inner = error["loc"] or (0,)
        index = int(position) + offset
        place = f"(at {''.join(f'[{step!r}]' for step in inner)}) " if inner else ""
        reason = f"does not fit: {place}{error['msg'].lower()}, got {type(error['input']).__name__}"
        return ArgumentsError(self.worker, reason, argument=self._argument_name(index) if index < len(args) else None)


def check_method(worker: str, name: str, method: Any) -> None:
    """Raise DeclarationError unless ``method``, as it stands in the class, can be called on an instance and run a job."""
    found: object = method
    if isinstance(method, (staticmethod, classmethod, type)) or not callable(method) or not hasattr(method, "__get__"):
        fact = f"{name} = {short_repr(found)} is not allowed."
        raise DeclarationError(worker, f"{fact} Allowed: an ordinary method, def {name}(self, ...).", attribute=name)
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise DeclarationError(worker, f"{name} holds a yield, so a call would run nothing.", attribute=name)


def check_self_parameter(worker: str, name: str, method: Callable[..., Any]) -> None:
    """Raise DeclarationError unless the first parameter of ``method`` is the instance.

    It is recognised by its name: self, or a name that begins with _ (an unused parameter).
    """
    signature = inspect.signature(method)
    first = next(iter(signature.parameters.values()), None)
    if first is not None and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        if first.name == "self" or first.name.startswith("_"):
            return
        fact = f"its first parameter, {first.name!r}, would be given the worker's instance"
    else:
        fact = "it would be called with the worker's instance, and has no parameter for it"
    parameters = str(signature)[1:]
    wanted = f"(self{parameters}" if parameters.startswith(")") else f"(self, {parameters}"
    raise DeclarationError(worker, f"{name} needs self: {fact}. Write def {name}{wanted}.", attribute=name)


def build_signature(
    worker: str, method: Callable[..., Any], name: str = "perform", *, strict: bool = True
) -> JobSignature:
    """Read ``method``, called ``name``. Raises DeclarationError for a parameter that cannot travel in a list of JSON values.

    Without ``strict``, a parameter whose annotation JSON cannot carry, or whose own default does not fit, takes any value.
    """
    faults = ErrorCollector(worker)
    parameters = _read_parameters(faults, name, method)
    positions = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]
    rest = next((parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL), None)
    hints = _json_annotations(faults, name, method, parameters, strict=strict)
    defaults = tuple(parameter.default for parameter in positions if parameter.default is not inspect.Parameter.empty)
    names = tuple(parameter.name for parameter in positions)
    required = len(names) - len(defaults)
    adapters = ArgumentValidators(worker, name)
    _check_defaults(faults, adapters, dict(zip(names[required:], defaults, strict=True)), hints, strict=strict)
    faults.raise_errors()
    return JobSignature(
        worker=worker,
        method=name,
        names=names,
        required=required,
        positional_only=sum(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in positions),
        varargs=rest.name if rest else None,
        defaults=defaults,
        json_defaults=tuple(map(_default_as_json, defaults)),
        annotations=tuple(hints[parameter.name] for parameter in (*positions, *([rest] if rest else ()))),
        validate=adapters.for_positions([hints[name] for name in names]),
        validate_bulk=adapters.for_bulk([hints[name] for name in names]),
        validate_varargs=adapters.for_varargs(hints[rest.name]) if rest else None,
    )


def _read_parameters(faults: ErrorCollector, method_name: str, method: Callable[..., Any]) -> list[inspect.Parameter]:
    check_self_parameter(faults.worker, method_name, method)
    parameters = list(inspect.signature(method).parameters.values())
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            advice = "make it an ordinary parameter (callers may still name it)"
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            advice = "take a dict[str, ...] parameter instead"
        else:
            continue
        message = f"{method_name}'s parameter {str(parameter)!r} is not possible: a payload has a list of arguments; {advice}."
        faults.add(message, method_name)
    return [one for one in parameters[1:] if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]


def _json_annotations(
    faults: ErrorCollector,
    method_name: str,
    method: Callable[..., Any],
    parameters: list[inspect.Parameter],
    *,
    strict: bool,
) -> dict[str, Any]:
    try:
        resolved = resolve_annotations(inspect.unwrap(method))
    except InvalidValue as error:
        faults.add(f"{method_name}: {error}.", method_name)
        resolved = {}
    hints = {parameter.name: resolved.get(parameter.name, Any) for parameter in parameters}
    for name, annotation in hints.items():
        try:
            check_json_annotation(annotation)
        except InvalidValue as error:
            if strict:
                message = f"{method_name}'s parameter {name!r}: {error}. {_NON_STRICT_HINT}"
                faults.add(message, method_name)
            hints[name] = Any
    return hints


def _check_defaults(
    faults: ErrorCollector,
    adapters: ArgumentValidators,
    defaults: dict[str, Any],
    hints: dict[str, Any],
    *,
    strict: bool,
) -> None:
    for name, default in defaults.items():
        try:
            check_strict_json(default)
            validate = adapters.for_positions([hints[name]])
            if validate is not None:
                validate((default,))
        except (NotJsonError, ValidationError) as error:
            if strict:
                reason = (
                    error.reason if isinstance(error, NotJsonError) else f"does not fit {_annotation_name(hints[name])}"
                )
                message = f"the default of {adapters.method}'s parameter {name!r} {reason}. {_NON_STRICT_HINT}"
                faults.add(message, adapters.method)
            hints[name] = Any


def _default_as_json(default: Any) -> bytes | None:
    try:
        check_strict_json(default)
    except NotJsonError:
        return None
    return dumps_ordered(default)


def _reason_with_path(error: NotJsonError) -> str:
    return f"(at {error.path}) {error.reason}" if error.path else error.reason


def _error_details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False)


def _annotation_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


_HANDLER = re.compile(r"perform_v(0|[1-9][0-9]*)")
_MISSPELT_HANDLER = re.compile(r"([a-z]+?)_*(v|vers?|version)?_*(\d*)_*", re.IGNORECASE)
_SIMILARITY_CUTOFF = 0.85


# GitLab's contract is that newer code handles every older version. A handler does so under the signature that ``perform`` had then,
# instead of branches inside of ``perform``.
@dataclass(frozen=True, slots=True)
class VersionHandler:
    """The method that runs jobs of one older version, with a signature of its own."""

    signature: JobSignature
    is_async: bool
    loggable_positions: frozenset[int]

    @property
    def method(self) -> str:
        """The name of the method, for example ``perform_v1``."""
        return self.signature.method


# A handler runs exactly its version. A handler for "1 and older" would have to guess the arguments of version 0.
def is_handler(name: str) -> bool:
    """Whether a method of this name runs jobs of an older version."""
    return _HANDLER.fullmatch(name) is not None


def check_handler_names(faults: ErrorCollector, owner: type[Any]) -> None:
    """Note names in the body of ``owner`` that look like a handler and are none.

    Such is a misspelt name (``perform_v01``, ``perform_version_1``), and a value that is no method.
    """
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        if is_handler(name):
            with faults.collect():
                check_method(faults.worker, name, value)
            continue
        parts = _MISSPELT_HANDLER.fullmatch(name)
        if parts and (parts[2] or parts[3]) and nearest(parts[1].lower(), ("perform",), cutoff=_SIMILARITY_CUTOFF):
            hint = f" (did you mean 'perform_v{int(parts[3])}'?)" if parts[3] else ""
            faults.add(
                f"{name!r} runs no jobs{hint}. The method for jobs of an older version is called perform_v<N>, such as perform_v0 or "
                f"perform_v1. A helper of your own: _{name}.",
                name,
            )


def read_handlers(
    worker: str, cls: type[Any], version: int, loggable: tuple[str, ...], *, strict: bool
) -> Mapping[int, VersionHandler]:
    """Return the handlers of a class of ``version``, resolved along the MRO, by the version whose jobs they run.

    Raises DeclarationError for each handler that no job would reach, as it is not older than the class, and for each signature
    that cannot travel.
    """
    faults = ErrorCollector(worker)
    found: dict[int, VersionHandler] = {}
    for name, owner in _handlers_by_owner(cls):
        number = int(name.removeprefix("perform_v"))
        if number >= version:
            where = "" if owner is cls else f" (of {owner.__qualname__})"
            faults.add(
                f"{name}{where} is for jobs older than the class, but the class says version = {version}: jobs of its own version "
                f"run perform. Raise version (to {number + 1} or more), or remove {name}.",
                name,
            )
            continue
        method = vars(owner)[name]
        with faults.collect():
            check_method(worker, name, method)
            signature = build_signature(worker, method, name, strict=strict)
            positions = frozenset(index for index, word in enumerate(signature.names) if word in loggable)
            found[number] = VersionHandler(signature, inspect.iscoroutinefunction(method), positions)
    faults.raise_errors()
    return found


def signature_since(handlers: Mapping[int, VersionHandler], version: int) -> int:
    """Return the version since which the method that runs ``version`` has been ``perform``: 0, or one after an older handler's.

    The number is the same in every release: a handler keeps the one that ``perform`` had when its version was the newest.
    """
    handles_it = version in handlers
    return max((number + 1 for number in handlers if not handles_it or number < version), default=0)


def _handlers_by_owner(cls: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    names = dict.fromkeys(name for owner in cls.__mro__ for name in vars(owner) if is_handler(name))
    return ((name, next(owner for owner in cls.__mro__ if name in vars(owner))) for name in names)
