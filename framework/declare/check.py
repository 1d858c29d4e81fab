"""Check a class body when the class is created, and name the nearest right name in each message."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from operator import itemgetter
from typing import Any

from typing_extensions import Format, get_annotations

from framework.declare import names, validators
from framework.declare.attribute import (
    Attribute,
    ClassValues,
    constraints_of,
    groups_of,
    hooks_of,
    is_group,
    merged,
    own_groups_of,
)
from framework.declare.declaration import NOT_OWNED, Declaration
from framework.declare.misuse import advice, declared_value
from framework.declare.options import declared_options
from framework.declare.signature import (
    JobSignature,
    VersionHandler,
    build_signature,
    check_handler_names,
    check_method,
    read_handlers,
)
from framework.declare.validators import ErrorCollector, validate_value
from framework.text import did_you_mean, format_count, nearest
from framework.typeguards import class_of, is_class, qualified_name, short_repr
from framework.types import QUEUE_NAME

_HOOK_PREFIXES = ("on_concurrency_limit", "sidekiq_")
"""A user expects that a method with such a prefix is called: GitLab's hooks, and Sidekiq's (``sidekiq_retry_in``)."""

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])([A-Z])")
_NOTHING = object()
_SIMILARITY_CUTOFF = 0.85
"""How alike a free name and an attribute must be to count as a misspelling: ``preform`` is one, ``perform_one`` is not."""


def read_attributes(faults: ErrorCollector, cls: type[Any]) -> dict[str, Any]:
    """Return the validated value of every attribute, resolved along the MRO; check the body and the hooks too.

    Each fault names the class, the attribute, the value, the allowed values and the nearest name. A faulty attribute gets the
    default.
    """
    known = attributes_of(cls)
    _check_body(faults, cls, known)
    for mixin in _mixins(cls):
        _check_mixin(faults, mixin, known, hooks_of(cls))
    _check_reserved_names(faults, cls)
    owners = defining_classes(cls)
    places = {name: _inherited_from_note(owner, cls) for name, owner in owners.items()}
    attributes: dict[str, Any] = {}
    wrong: set[str] = set()
    for name, attribute in known.items():
        attributes[name] = attribute.default
        noted = len(faults.errors)
        with faults.collect():
            value = declared_value(owners[name], name) if name in owners else attribute.default
            attributes[name] = validate_value(faults.worker, name, value, attribute.validator, places.get(name, ""))
        if len(faults.errors) > noted:
            wrong.add(name)
    _check_hooks(faults, cls)
    found = ClassValues(cls, attributes, owners, wrong)
    _check_constraints(faults, found)
    for group in groups_of(cls):
        if group.check is not None:
            group.check(faults, found)
    for name, attribute in known.items():
        if name not in wrong:
            _check_kind(faults, cls, attribute, attributes[name])
    return attributes


def _check_constraints(faults: ErrorCollector, found: ClassValues) -> None:
    """Note each broken rule, with both values, the reason and the remedy. The two values may be written in different classes."""
    for rule in constraints_of(found.cls):
        pair = rule.attribute_names()
        first, second = (found.values[name] for name in pair)
        if found.wrong.isdisjoint(pair) and first == rule.value and second in rule.forbidden_values:
            places = (_inherited_from_note(found.owners.get(name, found.cls), found.cls) for name in pair)
            fact = ", ".join(
                f"{name} = {value!r}{place}" for name, value, place in zip(pair, (first, second), places, strict=True)
            )
            faults.add(f"{fact}: {rule}, as {rule.reason}. {rule.remedy}", rule.attribute)


def _check_kind(faults: ErrorCollector, cls: type[Any], attribute: Attribute, value: Any) -> None:
    """Note an attribute of another base class, unless it has its default."""
    kind = attribute.kind
    if (
        kind is not None
        and kind.refused
        and not getattr(cls, kind.flag, False)
        and value != attribute.validator(attribute.default)
    ):
        faults.add(f"{attribute.name} belongs to {kind.name}: subclass that, or {kind.otherwise}.", attribute.name)


def attributes_of(cls: type[Any]) -> dict[str, Attribute]:
    """Return the attributes of a worker class by their names: those of its base, and those of further groups of the application."""
    known: dict[str, Attribute] = cls._aw_attributes
    own = own_groups_of(cls)
    return merged(own, known) if own else known


def build_declaration(faults: ErrorCollector, cls: type[Any], attributes: dict[str, Any]) -> Declaration:
    """Return the declaration of a class that may run: it has a ``perform`` and names that fit the wire.

    Raises DeclarationError with every fault, those already in ``errors`` included.
    """
    perform = _find_perform(faults, cls)
    _check_constructor(faults, cls)
    # The setting is not known when a class is created: only the class itself can make its own arguments less strict.
    strict = attributes["strict_arguments"] in (None, "raise") and not faults.has_error_in("strict_arguments")
    loggable = attributes["loggable_arguments"]
    signature: JobSignature | None = None
    handlers: Mapping[int, VersionHandler] = {}
    if perform is not None:
        with faults.collect():
            signature = build_signature(faults.worker, perform, strict=strict)
    # Without a valid version it is not known which handlers are older.
    if not faults.has_error_in("version"):
        with faults.collect():
            handlers = read_handlers(faults.worker, cls, attributes["version"], loggable, strict=strict)
    if signature is not None:
        owner = defining_classes(cls).get("loggable_arguments", cls)
        place = _inherited_from_note(owner, cls)
        _check_loggable(faults, place, loggable, signature, handlers)
        for group in groups_of(cls):
            if group.check_perform is not None:
                group.check_perform(faults, attributes, signature)
    facts = dict(attributes)
    # Whether the application has categories is not known before its configuration is loaded, which checks it (the router).
    facts["feature_category"] = attributes["feature_category"] or NOT_OWNED
    facts["wire_name"] = attributes["wire_name"] or names.wire_name(cls.__module__, _name_in_module(cls))
    _check_aliases(faults, facts["wire_name"], attributes["aliases"])
    queue = names.queue_name(facts["wire_name"], attributes["queue_namespace"])
    _check_queue(faults, facts["wire_name"], queue)
    faults.raise_errors()
    assert signature is not None  # noqa: S101 - else there is a fault
    # A class with handlers of both kinds may use a thread for any job.
    is_async = all([inspect.iscoroutinefunction(perform), *(handler.is_async for handler in handlers.values())])
    isolated = attributes.get("isolation") is not None
    return Declaration.of(
        facts,
        class_name=cls.__qualname__,
        module=cls.__module__,
        generated_queue=queue,
        signature=signature,
        is_async=is_async and not isolated,
        in_thread=not is_async and not isolated,
        loggable_positions=frozenset(index for index, name in enumerate(signature.names) if name in loggable),
        version_handlers=handlers,
        has_category=attributes["feature_category"] is not None,
        chosen_queues=cls._aw_chosen_queues,
        is_cron=cls._aw_is_cron,
        is_iterable=cls._aw_is_iterable,
        bounded=facts["timeout"] is not None or facts.get("limiter") is not None,
        options=declared_options(facts),
    )


def check_class_keywords(faults: ErrorCollector, cls: type[Any], abstract: object, others: Mapping[str, Any]) -> None:
    """Note the keywords of the class statement that are not the framework's."""
    if type(abstract) is not bool:
        message = f"abstract = {short_repr(abstract)} is not allowed. Allowed: True or False."
        faults.add(message, "abstract")
    attributes = attributes_of(cls)
    for name, value in others.items():
        known = ("abstract", *attributes)
        in_body = f" Write attributes in the class body: {name} = {short_repr(value)}." if name in attributes else ""
        word = advice(name, "attribute")
        hint = f". {word}" if word else "" if in_body else did_you_mean(name, known)
        message = f"{name} is no keyword of a worker class{hint}. Allowed: abstract.{in_body}"
        faults.add(message, name)


def defining_classes(cls: type[Any]) -> dict[str, type[Any]]:
    """Return the class along the MRO that gives each attribute its value; attributes with the default of their group are left out."""
    known = attributes_of(cls)
    owners: dict[str, type[Any]] = {}
    # As Python looks them up, so what stands behind the base counts for nothing.
    for owner in takewhile(lambda one: one is not cls._aw_base, cls.__mro__):
        for name in known.keys() & vars(owner).keys():
            if owner is cls or known[name].inherited:
                owners.setdefault(name, owner)
    return {name: owner for name, owner in owners.items() if not is_group(owner)}


def _is_ours(owner: type[Any], cls: type[Any]) -> bool:
    """Return whether a class along the MRO of ``cls`` is the base of the worker classes, one of its parts, or an attribute group."""
    return owner in cls._aw_parts or is_group(owner)


def _value_of_base(cls: type[Any], name: str) -> Any:
    """Return what the base of the worker classes has under a name, ``_NOTHING`` for no such name."""
    base: type[Any] = cls._aw_base
    return next((vars(owner)[name] for owner in base.__mro__ if name in vars(owner)), _NOTHING)


def _inherited_from_note(owner: type[Any], cls: type[Any]) -> str:
    """Return the class from which a value is inherited, as a suffix of a message; "" for the class's own value."""
    return "" if owner is cls else f" (in {qualified_name(owner)})"


def _name_in_module(cls: type[Any]) -> str:
    """Return the name of the class behind that of its module; a function registered as a job has the name of a class too."""
    return vars(cls).get("_aw_class_name") or cls.__qualname__.rpartition("<locals>.")[2]


def _mixins(cls: type[Any]) -> Iterator[type[Any]]:
    return (owner for owner in cls.__mro__ if not issubclass(owner, cls._aw_base) and not _is_ours(owner, cls))


def _attribute_like_values(owner: type[Any], known: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Return names that look like attributes: public, lower case, and no method, property, nested class or other descriptor.

    A class under a name that nearly is an attribute's counts too (``deduplicat = Deduplicate``).
    """
    for name, value in vars(owner).items():
        if name.startswith("_") or name.isupper() or _is_descriptor(value):
            continue
        if not isinstance(value, type) or (name.islower() and closest_name(name, known)):
            yield name, value


def _is_descriptor(value: Any) -> bool:
    return hasattr(class_of(value), "__get__")


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is a misspelling of: nearly the same letters, or the same in another order (``retyr``)."""
    letters = sorted(name)
    return nearest(name, known, cutoff=_SIMILARITY_CUTOFF) or next(
        (word for word in known if sorted(word) == letters), None
    )


def _callable_names(cls: type[Any], known: Mapping[str, Attribute]) -> tuple[str, ...]:
    """Return the names that may hold a function: ``perform``, the hooks, and the limits."""
    return ("perform", *hooks_of(cls), *(name for name, one in known.items() if one.validator is validators.limit))


def _closest_hook(name: str, hooks: Iterable[str]) -> str | None:
    """Return the hook that a name in another spelling, or with a hook's prefix, is a misspelling of."""
    word = _CAMEL_CASE_BOUNDARY.sub(r"_\1", name).lower()
    if word in hooks:
        return word
    if not word.startswith(_HOOK_PREFIXES):
        return None
    # Sidekiq has hooks that this framework has not. A name with the prefix of a limit's hook means one of those two.
    bare = word.removeprefix("sidekiq_")
    return nearest(bare, hooks, cutoff=_SIMILARITY_CUTOFF if bare != word else 0.6)


def _check_body(faults: ErrorCollector, cls: type[Any], known: Mapping[str, Attribute]) -> None:
    check_handler_names(faults, cls)
    hooks, callables = hooks_of(cls), _callable_names(cls, known)
    for name, value in _attribute_like_values(cls, known):
        if name not in known and name not in callables:
            faults.add(
                f"{name} = {short_repr(value)}: {name!r} is not a worker attribute{_attribute_advice(name, known)}",
                name,
            )
    _check_annotations(faults, cls, known)
    for name, value in vars(cls).items():
        if name.startswith("_") or not _is_descriptor(value) or _value_of_base(cls, name) is not _NOTHING:
            continue
        match = closest_name(name, callables) or _closest_hook(name, hooks)
        word = None if match else advice(name, "hook")
        if word is not None:
            faults.add(f"{name!r} is not called by the framework. {word}. A helper of your own: _{name}.", name)
        if match is not None:
            faults.add(
                f"{name!r} is not called by the framework (did you mean {match!r}?). A helper of your own: _{name}.",
                name,
            )


def _attribute_advice(name: str, known: Iterable[str]) -> str:
    """Return the end of the message for an unknown attribute. All attributes are listed only if no name is near."""
    own = f"Constants of your own: {name.upper()} or _{name}."
    word = advice(name, "attribute")
    if word is not None:
        return f". {word}. {own}"
    own += " An option of your own: declare_option(...) before the class."
    hint = did_you_mean(name, known)
    return f"{hint}. {own}" if hint else f". {own} Attributes: {', '.join(sorted(known))}."


def _check_annotations(faults: ErrorCollector, cls: type[Any], known: Mapping[str, Attribute]) -> None:
    # ``urgency: "high"`` is valid Python and sets nothing. A name that is no attribute may annotate an instance's own field.
    for name, annotation in get_annotations(cls, format=Format.FORWARDREF).items():
        match = None if name in vars(cls) or name.startswith("_") else closest_name(name, known)
        if match is not None:
            hint = "" if name == match else f" (did you mean {match!r}?). A name of your own: _{name}"
            faults.add(
                f"{name}: {_annotation_text(annotation)} is an annotation without a value and sets nothing{hint}. "
                f"Write {match} = ...; allowed: {known[match].validator.allowed}.",
                name,
            )


def _annotation_text(annotation: Any) -> str:
    return annotation.__name__ if is_class(annotation) else short_repr(annotation)


def _check_mixin(
    faults: ErrorCollector, mixin: type[Any], known: Mapping[str, Attribute], hooks: Mapping[str, int]
) -> None:
    # A mixin may come from any library and hold values of its own, so only what looks like a misspelling is refused.
    check_handler_names(faults, mixin)
    for name, value in _attribute_like_values(mixin, known):
        match = None if name in known else closest_name(name, known)
        if match is not None:
            faults.add(
                f"{name} = {short_repr(value)} in {qualified_name(mixin)}: {name!r} is not a worker attribute "
                f"(did you mean {match!r}?).",
                name,
            )
    for name, value in vars(mixin).items():
        is_other = isinstance(value, classmethod) and name not in hooks
        match = closest_name(name, hooks) or _closest_hook(name, hooks) if is_other else None
        if match is not None:
            message = f"{name!r} in {qualified_name(mixin)} is not called by the framework (did you mean {match!r}?)."
            faults.add(message, name)


def _check_reserved_names(faults: ErrorCollector, cls: type[Any]) -> None:
    """Refuse names that hide the framework's: ``Worker.route()`` would call a helper, ``self.jid`` would be a method."""
    hooks = hooks_of(cls)
    for owner in (cls, *_mixins(cls)):
        for name, value in sorted(vars(owner).items(), key=itemgetter(0)):
            # perform_async and the like may be wrapped.
            if name in hooks or isinstance(value, classmethod):
                continue
            if name in ("jid", "job_version") or isinstance(_value_of_base(cls, name), classmethod):
                fact = f"{name} = {short_repr(value)}{_inherited_from_note(owner, cls)}"
                message = f"{fact} is not allowed: it hides the framework's own {name}. Give it another name, such as _{name}."
                faults.add(message, name)


def _check_hooks(faults: ErrorCollector, cls: type[Any]) -> None:
    for name, count in hooks_of(cls).items():
        *owners, ours = (owner for owner in cls.__mro__ if name in vars(owner))
        if not owners:
            continue
        owner, wanted = owners[0], inspect.signature(vars(ours)[name].__get__(None, cls))
        hook = vars(owner)[name]
        if not isinstance(hook, classmethod):
            fact = f"{name} = {short_repr(hook)}{_inherited_from_note(owner, cls)}"
            message = (
                f"{fact} is not allowed: the hook is called on the class. Write def {name}{wanted} under @classmethod."
            )
            faults.add(message, name)
            continue
        bound: Callable[..., Any] = getattr(cls, name)
        if inspect.iscoroutinefunction(bound):
            message = f"{name}{_inherited_from_note(owner, cls)} is called without await: write def, not async def."
            faults.add(message, name)
            continue
        given = inspect.signature(bound)
        try:
            given.bind(*range(count))
        except TypeError:
            method = f"{name}{given}{_inherited_from_note(owner, cls)}"
            message = f"{method} cannot be called with {format_count(count, 'argument')}: it must take {wanted}."
            faults.add(message, name)


def _find_perform(faults: ErrorCollector, cls: type[Any]) -> Callable[..., Any] | None:
    owner = next(owner for owner in cls.__mro__ if "perform" in vars(owner))
    if owner in cls._aw_base.__mro__:
        if not any(fault.attribute and closest_name(fault.attribute, ("perform",)) for fault in faults.errors):
            faults.add("perform is missing: write def perform(self, ...) -> None.", "perform")
        return None
    perform: Callable[..., Any] = declared_value(owner, "perform")
    noted = len(faults.errors)
    with faults.collect():
        check_method(faults.worker, "perform", perform)
    return perform if len(faults.errors) == noted else None


def _check_constructor(faults: ErrorCollector, cls: type[Any]) -> None:
    try:
        inspect.signature(cls).bind()
    except TypeError:
        message = (
            "__init__ needs arguments, but the framework makes one instance per job without any; take them in perform."
        )
        faults.add(message, "__init__")


def _check_queue(faults: ErrorCollector, wire_name: str, queue: str) -> None:
    if QUEUE_NAME.fullmatch(queue) is None:
        message = f"the queue name {queue!r} made from the wire name {wire_name!r} must be ASCII; give the class a `wire_name`."
        faults.add(message, "wire_name")


def _check_loggable(
    faults: ErrorCollector,
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
                f"loggable_arguments = {loggable!r}{place}: {name!r} is not a parameter of perform{did_you_mean(name, known)}. "
                f"Allowed: {allowed}.",
                "loggable_arguments",
            )


def _check_aliases(faults: ErrorCollector, wire_name: str, aliases: tuple[str, ...]) -> None:
    if wire_name in aliases:
        message = f"aliases = {aliases!r} lists {wire_name!r}, which is its wire name now; aliases are the former ones."
        faults.add(message, "aliases")


def reject_identity_on_abstract(faults: ErrorCollector, cls: type[Any]) -> None:
    """Note names of a class that runs on an abstract class."""
    for name in (name for name, one in attributes_of(cls).items() if not one.inherited):
        if vars(cls).get(name):
            fact = f"{name} = {vars(cls)[name]!r}"
            message = f"{fact} belongs to a class that runs, and this one is abstract; declare it in the subclass."
            faults.add(message, name)
