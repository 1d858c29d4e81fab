"""Everything a class body may get wrong, found when the class is created and said with the nearest right name."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import Format, get_annotations

from framework.declare import names, versions
from framework.declare.attributes import ATTRIBUTES, OWN_ATTRIBUTES
from framework.declare.cross_rules import check_cross_rules
from framework.declare.declaration import Declaration
from framework.declare.faults import Faults
from framework.declare.misuse import plain
from framework.declare.policies import Deduplicate
from framework.declare.signature import JobSignature, build_signature, check_method
from framework.declare.values import check_value
from framework.declare.versions import VersionHandler
from framework.settings.shapes import class_of, is_class, short_repr
from framework.settings.suggest import did_you_mean, nearest
from framework.types import QUEUE_NAME

HOOKS: Mapping[str, int] = {
    "retry_in": 3,
    "retries_exhausted": 2,
    "interruptions_exhausted": 1,
    "idempotency_arguments": 1,
    "on_concurrency_limit_deferred": 1,
    "on_concurrency_limit_resumed": 1,
}
"""The class hooks and how many arguments each is called with."""

_HOOKS_BEGIN = ("on_concurrency_limit", "sidekiq_")
"""Of a hook that begins like this a user expects that it is called: GitLab's, and Sidekiq's (``sidekiq_retry_in``)."""

_CAMEL = re.compile(r"(?<=[a-z])([A-Z])")
_CALLABLE_NAMES = ("perform", *HOOKS, "concurrency_limit", "max_running_jobs")
_CLOSE = 0.85
"""How alike a free name and one of ours must be for it to be a slip; ``perform_one`` is not, ``preform`` is."""


def read_attributes(faults: Faults, cls: type[Any], base: type[Any]) -> dict[str, Any]:
    """Return the validated value of every attribute, resolved along the MRO; the body and the hooks are checked too.

    Each fault names the class, the attribute, the value, the allowed values and the nearest name; an attribute with a fault
    has the value that ``base`` gives it.
    """
    _check_body(faults, cls, base)
    for mixin in _mixins(cls, base):
        _check_mixin(faults, mixin)
    _check_taken(faults, cls, base)
    owners = {name: _owner(cls, base, name) for name in ATTRIBUTES}
    places = {name: _place(owner, cls) for name, owner in owners.items() if owner is not base}
    attributes: dict[str, Any] = {}
    wrong: set[str] = set()
    for name, attribute in ATTRIBUTES.items():
        attributes[name] = vars(base)[name]
        noted = len(faults.found)
        with faults.gathered():
            value = vars(owners[name])[name]
            attributes[name] = check_value(faults.worker, name, value, attribute.rule, places.get(name, ""))
        if len(faults.found) > noted:
            wrong.add(name)
    _check_hooks(faults, cls, base)
    check_cross_rules(faults, attributes, places, wrong)
    if attributes["max_running_jobs"] is not None and not hasattr(cls, "perform_with_capacity"):
        message = "max_running_jobs belongs to a LimitedCapacityWorker: subclass that, or declare concurrency_limit."
        faults.add(message, "max_running_jobs")
    if attributes["idempotent"] and not _declared(cls, base, "deduplicate"):
        attributes["deduplicate"] = Deduplicate("until_executing")
    return attributes


def declare(faults: Faults, cls: type[Any], base: type[Any], attributes: dict[str, Any]) -> Declaration:
    """Return the declaration of a class that is to run: it has a category, a ``perform`` and names fit for the wire.

    Raises DeclarationError otherwise, and when there are ``faults`` already: with all of them.
    """
    _check_category(faults, attributes)
    perform = _find_perform(faults, cls, base)
    _check_constructor(faults, cls)
    # The setting is not known yet when a class is created: only what the class says itself loosens its declaration.
    strict = attributes["strict_arguments"] in (None, "raise") and not faults.about("strict_arguments")
    loggable = attributes["loggable_arguments"]
    signature: JobSignature | None = None
    handlers: Mapping[int, VersionHandler] = {}
    if perform is not None:
        with faults.gathered():
            signature = build_signature(faults.worker, perform, strict=strict)
    if not faults.about("version"):  # else it is not known which handlers are older
        with faults.gathered():
            handlers = versions.read_handlers(faults.worker, cls, attributes["version"], loggable, strict=strict)
    if signature is not None:
        place = _place(_owner(cls, base, "loggable_arguments"), cls)
        _check_loggable(faults, place, loggable, signature, handlers)
    facts = dict(attributes)
    facts["wire_name"] = attributes["wire_name"] or names.wire_name(cls.__module__, _short_name(cls))
    _check_aliases(faults, facts["wire_name"], attributes["aliases"])
    queue = names.queue_name(facts["wire_name"], attributes["queue_namespace"])
    _check_queue(faults, facts["wire_name"], queue)
    faults.raise_any()
    assert signature is not None  # noqa: S101 - else there is a fault
    return Declaration(
        class_name=cls.__qualname__,
        module=cls.__module__,
        generated_queue=queue,
        signature=signature,
        # A class whose handlers are of both kinds may take a thread's time with any job.
        is_async=all([inspect.iscoroutinefunction(perform), *(handler.is_async for handler in handlers.values())]),
        loggable_positions=frozenset(index for index, name in enumerate(signature.names) if name in loggable),
        version_handlers=handlers,
        **facts,
    )


def check_keywords(faults: Faults, abstract: object, others: Mapping[str, Any]) -> None:
    """Note the keywords behind the bases that are not ours."""
    if type(abstract) is not bool:
        message = f"abstract = {short_repr(abstract)} is not allowed. Allowed: True or False."
        faults.add(message, "abstract")
    for name, value in others.items():
        known = ("abstract", *ATTRIBUTES)
        advice = f" Attributes stand in the class body: {name} = {short_repr(value)}." if name in ATTRIBUTES else ""
        message = f"{name} is no keyword of a worker class{'' if advice else did_you_mean(name, known)}. Allowed: abstract.{advice}"
        faults.add(message, name)


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


def _hook_meant(name: str) -> str | None:
    """The hook that a name in another spelling, or with the beginning of one, is meant to be, however unlike its end is."""
    word = _CAMEL.sub(r"_\1", name).lower()
    if word in HOOKS:
        return word
    if not word.startswith(_HOOKS_BEGIN):
        return None
    # Sidekiq has hooks that are not ours, and what begins like a hook of limits is meant to be one of the two.
    ours = word.removeprefix("sidekiq_")
    return nearest(ours, HOOKS, cutoff=_CLOSE if ours != word else 0.6)


def _check_body(faults: Faults, cls: type[Any], base: type[Any]) -> None:
    versions.check_names(faults, cls)
    for name, value in _plain_values(cls):
        if name not in ATTRIBUTES and name not in _CALLABLE_NAMES:
            faults.add(
                f"{name} = {short_repr(value)}: {name!r} is not a worker attribute{did_you_mean(name, ATTRIBUTES)}. "
                f"Constants of your own: {name.upper()} or _{name}. Attributes: {', '.join(sorted(ATTRIBUTES))}.",
                name,
            )
    _check_annotations(faults, cls)
    for name, value in vars(cls).items():
        if name.startswith("_") or name in vars(base) or not _is_descriptor(value):
            continue
        match = slip_of(name, _CALLABLE_NAMES) or _hook_meant(name)
        if match is not None:
            faults.add(
                f"{name!r} is not called by the framework (did you mean {match!r}?). A helper of your own: _{name}.",
                name,
            )


def _check_annotations(faults: Faults, cls: type[Any]) -> None:
    # ``urgency: "high"`` is valid Python and sets nothing. Of a name that is no attribute it may announce an instance's own.
    for name, annotation in get_annotations(cls, format=Format.FORWARDREF).items():
        match = None if name in vars(cls) or name.startswith("_") else slip_of(name, ATTRIBUTES)
        if match is not None:
            hint = "" if name == match else f" (did you mean {match!r}?). A name of your own: _{name}"
            faults.add(
                f"{name}: {_annotation_text(annotation)} is an annotation without a value and sets nothing{hint}. "
                f"Write {match} = ...; allowed: {ATTRIBUTES[match].rule.allowed}.",
                name,
            )


def _annotation_text(annotation: Any) -> str:
    return annotation.__name__ if is_class(annotation) else short_repr(annotation)


def _check_mixin(faults: Faults, mixin: type[Any]) -> None:
    # A mixin may come from anywhere and hold values of its own, so only what looks like a slip is refused.
    versions.check_names(faults, mixin)
    for name, value in _plain_values(mixin):
        match = None if name in ATTRIBUTES else slip_of(name, ATTRIBUTES)
        if match is not None:
            faults.add(
                f"{name} = {short_repr(value)} in {place_of(mixin)}: {name!r} is not a worker attribute (did you mean {match!r}?).",
                name,
            )
    for name, value in vars(mixin).items():
        is_other = isinstance(value, classmethod) and name not in HOOKS
        match = slip_of(name, HOOKS) or _hook_meant(name) if is_other else None
        if match is not None:
            message = f"{name!r} in {place_of(mixin)} is not called by the framework (did you mean {match!r}?)."
            faults.add(message, name)


def _check_taken(faults: Faults, cls: type[Any], base: type[Any]) -> None:
    """Refuse what hides a name of the framework's: ``Worker.route()`` would call a helper, ``self.jid`` be a method."""
    taken = {name for name, value in vars(base).items() if isinstance(value, classmethod)} - HOOKS.keys()
    taken |= {"jid", "job_version"}
    for owner in (cls, *_mixins(cls, base)):
        for name in sorted(taken & vars(owner).keys()):
            value = vars(owner)[name]
            if not isinstance(value, classmethod):  # perform_async and the like may be wrapped
                said = f"{name} = {short_repr(value)}{_place(owner, cls)}"
                message = f"{said} is not allowed: it hides the framework's own {name}. Give it another name, such as _{name}."
                faults.add(message, name)


def _check_hooks(faults: Faults, cls: type[Any], base: type[Any]) -> None:
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
            faults.add(message, name)
            continue
        bound: Callable[..., Any] = getattr(cls, name)
        if inspect.iscoroutinefunction(bound):
            message = f"{name}{_place(owner, cls)} is called without await: write def, not async def."
            faults.add(message, name)
            continue
        given = inspect.signature(bound)
        try:
            given.bind(*range(count))
        except TypeError:
            message = (
                f"{name}{given}{_place(owner, cls)} cannot be called with {count} arguments: it must take {wanted}."
            )
            faults.add(message, name)


def _check_category(faults: Faults, attributes: Mapping[str, Any]) -> None:
    said = any(fault.attribute and slip_of(fault.attribute, ("feature_category",)) for fault in faults.found)
    if attributes["feature_category"] is None and not said:
        message = (
            "feature_category is required: a name from feature_categories.yml of the config folder, or 'not_owned'. (A base class "
            "that is not to run itself: class Base(ApplicationWorker, abstract=True).)"
        )
        faults.add(message, "feature_category")


def _find_perform(faults: Faults, cls: type[Any], base: type[Any]) -> Callable[..., Any] | None:
    owner = next(owner for owner in cls.__mro__ if "perform" in vars(owner))
    if owner is base:
        if not any(fault.attribute and slip_of(fault.attribute, ("perform",)) for fault in faults.found):
            faults.add("perform is missing: write def perform(self, ...) -> None.", "perform")
        return None
    perform: Callable[..., Any] = plain(vars(owner)["perform"])
    noted = len(faults.found)
    with faults.gathered():
        check_method(faults.worker, "perform", perform)
    return perform if len(faults.found) == noted else None


def _check_constructor(faults: Faults, cls: type[Any]) -> None:
    try:
        inspect.signature(cls).bind()
    except TypeError:
        message = (
            "__init__ wants arguments, but the framework makes one instance per job without any; take them in perform."
        )
        faults.add(message, "__init__")


def _check_queue(faults: Faults, wire_name: str, queue: str) -> None:
    if QUEUE_NAME.fullmatch(queue) is None:
        message = f"the queue name {queue!r} made from the wire name {wire_name!r} must be ASCII; give the class a `wire_name`."
        faults.add(message, "wire_name")


def _check_loggable(
    faults: Faults,
    place: str,
    loggable: tuple[str, ...],
    signature: JobSignature,
    handlers: Mapping[int, VersionHandler],
) -> None:
    known = dict.fromkeys(
        name for one in (signature, *(handler.signature for handler in handlers.values())) for name in one.names
    )
    for name in loggable:
        if name not in known:
            allowed = ", ".join(map(repr, known)) or "none"
            faults.add(
                f"loggable_arguments = {loggable!r}{place}: {name!r} is no position of perform{did_you_mean(name, known)}. "
                f"Allowed: {allowed}.",
                "loggable_arguments",
            )


def _check_aliases(faults: Faults, wire_name: str, aliases: tuple[str, ...]) -> None:
    if wire_name in aliases:
        message = f"aliases = {aliases!r} lists {wire_name!r}, which is its wire name now; aliases are the former ones."
        faults.add(message, "aliases")
