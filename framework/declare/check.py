"""Everything a class body may get wrong, found when the class is created and said with the nearest right name."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import Format, get_annotations

from framework.declare import names, versions
from framework.declare.attributes import ATTRIBUTES, OWN_ATTRIBUTES
from framework.declare.cross_rules import check_cross_rules
from framework.declare.declaration import Declaration
from framework.declare.policies import Deduplicate
from framework.declare.signature import JobSignature, build_signature, check_method
from framework.declare.values import check_value
from framework.declare.versions import VersionHandler
from framework.errors import DeclarationError
from framework.settings.shapes import class_of, is_class, short_repr
from framework.settings.suggest import did_you_mean, nearest
from framework.types import QUEUE_NAME

HOOKS: Mapping[str, int] = {
    "retry_in": 3,
    "retries_exhausted": 2,
    "interruptions_exhausted": 1,
    "idempotency_arguments": 1,
}
"""The class hooks and how many arguments each is called with."""

_CALLABLE_NAMES = ("perform", *HOOKS, "concurrency_limit", "max_running_jobs")
_CLOSE = 0.85
"""How alike a free name and one of ours must be for it to be a slip; ``perform_one`` is not, ``preform`` is."""


def read_attributes(cls: type[Any], base: type[Any]) -> dict[str, Any]:
    """The validated value of every attribute, resolved along the MRO; the body and the hooks are checked too.

    Raises DeclarationError naming the class, the attribute, the value, the allowed values and the nearest name.
    """
    worker = place_of(cls)
    _check_body(worker, cls, base)
    for mixin in _mixins(cls, base):
        _check_mixin(worker, mixin)
    _check_taken(worker, cls, base)
    owners = {name: _owner(cls, base, name) for name in ATTRIBUTES}
    places = {name: _place(owner, cls) for name, owner in owners.items() if owner is not base}
    attributes = {
        name: check_value(worker, name, vars(owners[name])[name], attribute.rule, places.get(name, ""))
        for name, attribute in ATTRIBUTES.items()
    }
    _check_hooks(worker, cls, base)
    check_cross_rules(worker, attributes, places)
    if attributes["max_running_jobs"] is not None and not hasattr(cls, "perform_with_capacity"):
        message = "max_running_jobs belongs to a LimitedCapacityWorker: subclass that, or declare concurrency_limit."
        raise DeclarationError(worker, message, attribute="max_running_jobs")
    if attributes["idempotent"] and not _declared(cls, base, "deduplicate"):
        attributes["deduplicate"] = Deduplicate("until_executing")
    return attributes


def declare(cls: type[Any], base: type[Any], attributes: dict[str, Any]) -> Declaration:
    """The declaration of a class that is to run: it has a category, a ``perform`` and names fit for the wire.

    Raises DeclarationError otherwise.
    """
    worker = place_of(cls)
    if attributes["feature_category"] is None:
        raise DeclarationError(
            worker,
            "feature_category is required: a name from config/feature_categories.yml, or 'not_owned'. (A base class that is "
            "not to run itself: class Base(ApplicationWorker, abstract=True).)",
            attribute="feature_category",
        )
    perform = _find_perform(worker, cls, base)
    _check_constructor(worker, cls)
    # The setting is not known yet when a class is created: only what the class says itself loosens its declaration.
    strict = attributes["strict_arguments"] in (None, "raise")
    signature = build_signature(worker, perform, strict=strict)
    loggable = attributes["loggable_arguments"]
    handlers = versions.read_handlers(worker, cls, attributes["version"], loggable, strict=strict)
    _check_loggable(worker, _place(_owner(cls, base, "loggable_arguments"), cls), loggable, signature, handlers)
    facts = dict(attributes)
    facts["wire_name"] = attributes["wire_name"] or names.wire_name(cls.__module__, _short_name(cls))
    _check_aliases(worker, facts["wire_name"], attributes["aliases"])
    return Declaration(
        class_name=cls.__qualname__,
        module=cls.__module__,
        generated_queue=_generated_queue(worker, facts["wire_name"], attributes["queue_namespace"]),
        signature=signature,
        # A class whose handlers are of both kinds may take a thread's time with any job.
        is_async=all([inspect.iscoroutinefunction(perform), *(handler.is_async for handler in handlers.values())]),
        loggable_positions=frozenset(index for index, name in enumerate(signature.names) if name in loggable),
        version_handlers=handlers,
        **facts,
    )


def check_keywords(cls: type[Any], abstract: object, others: Mapping[str, Any]) -> None:
    """Nothing happens when the keywords behind the bases are ours. Raises DeclarationError otherwise."""
    worker = place_of(cls)
    if type(abstract) is not bool:
        message = f"abstract = {short_repr(abstract)} is not allowed. Allowed: True or False."
        raise DeclarationError(worker, message, attribute="abstract")
    for name, value in others.items():
        known = ("abstract", *ATTRIBUTES)
        advice = f" Attributes stand in the class body: {name} = {short_repr(value)}." if name in ATTRIBUTES else ""
        message = f"{name} is no keyword of a worker class{'' if advice else did_you_mean(name, known)}. Allowed: abstract.{advice}"
        raise DeclarationError(worker, message, attribute=name)


def owners_of(cls: type[Any], base: type[Any]) -> dict[str, type[Any]]:
    """The class along the MRO that says each attribute; those that nobody but ``base`` says are left out."""
    owners = {name: _owner(cls, base, name) for name in ATTRIBUTES}
    return {name: owner for name, owner in owners.items() if owner is not base}


def place_of(cls: type[Any]) -> str:
    """How messages name a class: where it stands, so that it can be found."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _place(owner: type[Any], cls: type[Any]) -> str:
    """Where an inherited value stands, to append to it; nothing for the class's own."""
    return "" if owner is cls else f" (in {place_of(owner)})"


def _short_name(cls: type[Any]) -> str:
    return cls.__qualname__.rpartition("<locals>.")[2]


def _owner(cls: type[Any], base: type[Any], name: str) -> type[Any]:
    """The class whose value counts: the first of the MRO that has one, as Python itself looks (falsy values too)."""
    if name in OWN_ATTRIBUTES:
        return cls if name in vars(cls) else base
    return next(owner for owner in cls.__mro__ if name in vars(owner))


def _declared(cls: type[Any], base: type[Any], name: str) -> bool:
    return any(name in vars(owner) for owner in cls.__mro__ if owner is not base)


def _mixins(cls: type[Any], base: type[Any]) -> Iterator[type[Any]]:
    return (
        owner
        for owner in cls.__mro__
        if not issubclass(owner, base) and owner is not object and owner not in base.__mro__
    )


def _plain_values(owner: type[Any]) -> Iterator[tuple[str, Any]]:
    """Names that look like attributes: public, lower case, and no method, property, nested class or other descriptor.

    A class under a name that is nearly an attribute's counts too (``deduplicat = Deduplicate``).
    """
    for name, value in vars(owner).items():
        if name.startswith("_") or name.isupper() or _is_descriptor(value):
            continue
        if not isinstance(value, type) or (name.islower() and slip_of(name, ATTRIBUTES)):
            yield name, value


def _is_descriptor(value: Any) -> bool:
    return hasattr(class_of(value), "__get__")


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is meant to be: nearly the same letters, or the same in another order (``retyr``)."""
    letters = sorted(name)
    return nearest(name, known, cutoff=_CLOSE) or next((word for word in known if sorted(word) == letters), None)


def _check_body(worker: str, cls: type[Any], base: type[Any]) -> None:
    versions.check_names(worker, cls)
    for name, value in _plain_values(cls):
        if name not in ATTRIBUTES and name not in _CALLABLE_NAMES:
            raise DeclarationError(
                worker,
                f"{name} = {short_repr(value)}: {name!r} is not a worker attribute{did_you_mean(name, ATTRIBUTES)}. "
                f"Constants of your own: {name.upper()} or _{name}. Attributes: {', '.join(sorted(ATTRIBUTES))}.",
                attribute=name,
            )
    _check_annotations(worker, cls)
    for name, value in vars(cls).items():
        if name.startswith("_") or name in vars(base) or not _is_descriptor(value):
            continue
        match = slip_of(name, _CALLABLE_NAMES)
        if match is not None:
            raise DeclarationError(
                worker,
                f"{name!r} is not called by the framework (did you mean {match!r}?). A helper of your own: _{name}.",
                attribute=name,
            )


def _check_annotations(worker: str, cls: type[Any]) -> None:
    # ``urgency: "high"`` is valid Python and sets nothing. Of a name that is no attribute it may announce an instance's own.
    for name, annotation in get_annotations(cls, format=Format.FORWARDREF).items():
        match = None if name in vars(cls) or name.startswith("_") else slip_of(name, ATTRIBUTES)
        if match is not None:
            hint = "" if name == match else f" (did you mean {match!r}?). A name of your own: _{name}"
            raise DeclarationError(
                worker,
                f"{name}: {_annotation_text(annotation)} is an annotation without a value and sets nothing{hint}. "
                f"Write {match} = ...; allowed: {ATTRIBUTES[match].rule.allowed}.",
                attribute=name,
            )


def _annotation_text(annotation: Any) -> str:
    return annotation.__name__ if is_class(annotation) else short_repr(annotation)


def _check_mixin(worker: str, mixin: type[Any]) -> None:
    # A mixin may come from anywhere and hold values of its own, so only what looks like a slip is refused.
    versions.check_names(worker, mixin)
    for name, value in _plain_values(mixin):
        match = None if name in ATTRIBUTES else slip_of(name, ATTRIBUTES)
        if match is not None:
            raise DeclarationError(
                worker,
                f"{name} = {short_repr(value)} in {place_of(mixin)}: {name!r} is not a worker attribute (did you mean {match!r}?).",
                attribute=name,
            )
    for name, value in vars(mixin).items():
        match = slip_of(name, HOOKS) if isinstance(value, classmethod) and name not in HOOKS else None
        if match is not None:
            message = f"{name!r} in {place_of(mixin)} is not called by the framework (did you mean {match!r}?)."
            raise DeclarationError(worker, message, attribute=name)


def _check_taken(worker: str, cls: type[Any], base: type[Any]) -> None:
    """Refuse what hides a name of the framework's: ``Worker.route()`` would call a helper, ``self.jid`` be a method."""
    taken = {name for name, value in vars(base).items() if isinstance(value, classmethod)} - HOOKS.keys()
    taken |= {"jid", "job_version"}
    for owner in (cls, *_mixins(cls, base)):
        for name in sorted(taken & vars(owner).keys()):
            value = vars(owner)[name]
            if not isinstance(value, classmethod):  # perform_async and the like may be wrapped
                said = f"{name} = {short_repr(value)}{_place(owner, cls)}"
                message = f"{said} is not allowed: it hides the framework's own {name}. Give it another name, such as _{name}."
                raise DeclarationError(worker, message, attribute=name)


def _check_hooks(worker: str, cls: type[Any], base: type[Any]) -> None:
    for name, count in HOOKS.items():
        owner = next(owner for owner in cls.__mro__ if name in vars(owner))
        if owner is base:
            continue
        hook = vars(owner)[name]
        wanted = inspect.signature(getattr(base, name))
        if not isinstance(hook, classmethod):
            said = f"{name} = {short_repr(hook)}{_place(owner, cls)}"
            message = (
                f"{said} is not allowed: the hook is called on the class. Write def {name}{wanted} under @classmethod."
            )
            raise DeclarationError(worker, message, attribute=name)
        bound: Callable[..., Any] = getattr(cls, name)
        if inspect.iscoroutinefunction(bound):
            message = f"{name}{_place(owner, cls)} is called without await: write def, not async def."
            raise DeclarationError(worker, message, attribute=name)
        given = inspect.signature(bound)
        try:
            given.bind(*range(count))
        except TypeError:
            message = (
                f"{name}{given}{_place(owner, cls)} cannot be called with {count} arguments: it must take {wanted}."
            )
            raise DeclarationError(worker, message, attribute=name) from None


def _find_perform(worker: str, cls: type[Any], base: type[Any]) -> Callable[..., Any]:
    owner = next(owner for owner in cls.__mro__ if "perform" in vars(owner))
    if owner is base:
        raise DeclarationError(worker, "perform is missing: write def perform(self, ...) -> None.", attribute="perform")
    perform: Callable[..., Any] = vars(owner)["perform"]
    check_method(worker, "perform", perform)
    return perform


def _check_constructor(worker: str, cls: type[Any]) -> None:
    try:
        inspect.signature(cls).bind()
    except TypeError:
        message = (
            "__init__ wants arguments, but the framework makes one instance per job without any; take them in perform."
        )
        raise DeclarationError(worker, message, attribute="__init__") from None


def _generated_queue(worker: str, wire_name: str, namespace: str | None) -> str:
    queue = names.queue_name(wire_name, namespace)
    if QUEUE_NAME.fullmatch(queue) is None:
        message = f"the queue name {queue!r} made from the wire name {wire_name!r} must be ASCII; give the class a `wire_name`."
        raise DeclarationError(worker, message, attribute="wire_name")
    return queue


def _check_loggable(
    worker: str, place: str, loggable: tuple[str, ...], signature: JobSignature, handlers: Mapping[int, VersionHandler]
) -> None:
    known = dict.fromkeys(
        name for one in (signature, *(handler.signature for handler in handlers.values())) for name in one.names
    )
    for name in loggable:
        if name not in known:
            allowed = ", ".join(map(repr, known)) or "none"
            raise DeclarationError(
                worker,
                f"loggable_arguments = {loggable!r}{place}: {name!r} is no position of perform{did_you_mean(name, known)}. "
                f"Allowed: {allowed}.",
                attribute="loggable_arguments",
            )


def _check_aliases(worker: str, wire_name: str, aliases: tuple[str, ...]) -> None:
    if wire_name in aliases:
        message = f"aliases = {aliases!r} lists {wire_name!r}, which is its wire name now; aliases are the former ones."
        raise DeclarationError(worker, message, attribute="aliases")
