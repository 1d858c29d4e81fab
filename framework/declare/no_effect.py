"""Warn of attributes and options that are declared and have no effect yet, at the application's own line."""

import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from framework.declare.attributes import ATTRIBUTES
from framework.errors import NoEffectWarning
from framework.typeguards import qualified_name, short_repr

ATTRIBUTES_WITHOUT_EFFECT: Mapping[str, str] = {
    name: one.no_effect for name, one in ATTRIBUTES.items() if one.no_effect
}
"""Each attribute without an effect in this release, and what does not happen."""

_PACKAGE_FOLDER = str(Path(__file__).resolve().parent.parent)
_CLASS_CREATION_FUNCTIONS = ("__init_subclass__", "__new__")
_WARNED = "_aw_no_effect_warned"
_ADVICE = "Leave it out until a release acts on it, or filter framework.errors.NoEffectWarning"


def warn_about_class(cls: type[Any], base: type[Any], defining_classes: Mapping[str, type[Any]]) -> None:
    """Warn of each attribute without an effect that the class itself, or one of its mixins, gives a value.

    For an inherited value the class that gives it was warned about. ``owners`` has that class for each attribute.
    """
    for name, missing in ATTRIBUTES_WITHOUT_EFFECT.items():
        owner = defining_classes.get(name)
        if owner is None or not _is_not_inherited(cls, base, owner) or vars(owner)[name] == vars(base)[name]:
            continue
        fact = f"{qualified_name(cls)}: {name} = {short_repr(vars(owner)[name])}"
        _warn(f"{fact} has no effect yet: {missing}. {_ADVICE}.")


def warn_about_options(worker: type[Any], worker_name: str, options: Iterable[str]) -> None:
    """Warn of each option of ``set`` without an effect, once per class in this process."""
    for name in options:
        if name in ATTRIBUTES_WITHOUT_EFFECT:
            warned: frozenset[str] = vars(worker).get(_WARNED, frozenset())
            if name not in warned:
                _warn(
                    f"{worker_name}: set({name}=...) has no effect yet: {ATTRIBUTES_WITHOUT_EFFECT[name]}. {_ADVICE}."
                )
                # After the warning: where a filter makes it an error, each call raises it.
                setattr(worker, _WARNED, warned | {name})


def _is_not_inherited(cls: type[Any], base: type[Any], owner: type[Any]) -> bool:
    """Whether no worker class above ``cls`` has the value already."""
    return not any(issubclass(parent, base) and issubclass(parent, owner) for parent in cls.__bases__)


def _warn(message: str) -> None:
    warnings.warn(message, NoEffectWarning, stacklevel=_caller_stacklevel() + 1)


def _caller_stacklevel() -> int:
    """Return how many frames the application's line is above the caller of this function.

    Frames of this package do not count, nor those of bases and metaclasses through which a class is created.
    """
    level, frame = 0, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_skipped_frame(frame.f_code.co_filename, frame.f_code.co_name):
        level, frame = level + 1, frame.f_back
    return level


def _is_skipped_frame(filename: str, function: str) -> bool:
    return filename.startswith(_PACKAGE_FOLDER) or function in _CLASS_CREATION_FUNCTIONS
