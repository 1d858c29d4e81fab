"""Read the fields of a form of the dashboard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from framework.text import Sentence, did_you_mean
from framework.typeguards import short_repr

Form: TypeAlias = Mapping[str, Sequence[str]]

MOST_MINUTES = 30 * 24 * 60
"""What operators set ends after 30 days at most."""

_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the form of an action; with bounds it is a whole number."""

    name: str
    label: str
    least: int | None = None
    most: int | None = None
    value: str = ""
    """What it has at first."""
    hint: str = ""
    choices: Sequence[str] = ()
    """The allowed words."""


REASON = Field("reason", "Reason")
MINUTES = Field("minutes", "Minutes", 1, MOST_MINUTES, "60")
PERCENT = Field("percent", "Percent", 0, 100, "100")


def word(form: Form, name: str) -> str:
    """Return the first value of a field, without spaces around it; empty if the form does not have it."""
    return (form.get(name) or [""])[0].strip()


def line(form: Form, name: str) -> str:
    """Return a text of one line; empty if the form does not have it.

    Raises:
        ValueError: it has more lines, or is too long.
    """
    text = word(form, name)
    if text and not text.isprintable():
        raise ValueError(Sentence("{name} must be one line of text.", name=name))
    if len(text) > _MOST_TEXT:
        raise ValueError(Sentence("{name} is longer than {most} characters.", name=name, most=_MOST_TEXT))
    return text


def reason_of(form: Form) -> str:
    """Return the reason of an operator.

    Raises:
        ValueError: there is none, or it is not one line.
    """
    text = line(form, "reason")
    if not text:
        raise ValueError(Sentence("Give the reason in one line, for the next operator."))
    return text


def number_of(form: Form, name: str, least: int, most: int) -> int:
    """Return a whole number.

    Raises:
        ValueError: it is none, or not within the bounds.
    """
    text = word(form, name)
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ValueError(
            Sentence(
                "{name} must be a number from {least} to {most:,}, not {given}.",
                name=name,
                least=least,
                most=most,
                given=short_repr(text),
            )
        )
    return number


def lasts_s_of(form: Form) -> float:
    """Return the field ``minutes`` in seconds. Raises as ``number_of``."""
    return number_of(form, "minutes", 1, MOST_MINUTES) * 60.0


def choice_of(form: Form, name: str, allowed: Sequence[str]) -> str:
    """Return one of the allowed words.

    Raises:
        ValueError: it is none of these.
    """
    text = word(form, name)
    if text not in allowed:
        raise ValueError(
            Sentence(
                "{name} must be one of {names}, not {given}{hint}.",
                name=name,
                names=", ".join(allowed),
                given=short_repr(text),
                hint=did_you_mean(text, allowed),
            )
        )
    return text
