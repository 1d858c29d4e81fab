"""The texts of the dashboard in the language of the viewer. The English text or template is the key of its translation."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from framework.text import Sentence

LANGUAGE_COOKIE = "aw_language"
"""The cookie with the language that a viewer has chosen; the script of the pages sets it."""

_FOLDER = Path(__file__).parent / "catalogues"


class Catalogue:
    """The texts of one language."""

    def __init__(self, language: str, texts: Mapping[str, str]) -> None:
        self.language = language
        self.texts = texts
        """The text of each English text."""

    def text(self, english: str, /, **values: object) -> str:
        """Return the text in this language, in English without a translation; ``{name}`` stands for a value."""
        found = self.texts.get(english, english)
        return found.format(**{name: self.said(one) for name, one in values.items()}) if values else found

    def said(self, value: object) -> object:
        """Return a sentence in this language, its fields too; another value as it is: text of users is not translated."""
        return self.text(value.template, **value.fields) if self.texts and isinstance(value, Sentence) else value


@cache
def catalogue(language: str) -> Catalogue:
    """Return the catalogue of a language: English has no file."""
    file = _FOLDER / f"{language}.json"
    return Catalogue(language, json.loads(file.read_text(encoding="utf-8")) if language in languages() else {})


@cache
def languages() -> frozenset[str]:
    """Return the languages beside English."""
    return frozenset(file.stem for file in _FOLDER.glob("*.json"))


@cache
def language_names() -> Mapping[str, str]:
    """Return the name of each language in this language, by its code. A catalogue translates ``English`` as its own name."""
    return {language: catalogue(language).text("English") for language in ("en", *sorted(languages()))}


def chosen_language(accept: str) -> str:
    """Return the first language of the header ``Accept-Language`` that has a catalogue, else English."""
    for part in accept.split(","):
        language = part.partition(";")[0].strip().partition("-")[0].lower()
        if language == "en" or language in languages():
            return language
    return "en"
