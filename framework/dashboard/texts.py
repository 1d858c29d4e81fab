"""The texts of the dashboard in the language of the viewer. The English text is its own key; a catalogue has the others."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "catalogues"


class Catalogue:
    """The texts of one language."""

    def __init__(self, language: str, texts: Mapping[str, str]) -> None:
        self.language = language
        self._texts = texts

    def text(self, english: str, **values: object) -> str:
        """Return the text in this language, in English without a translation; ``{name}`` stands for a value."""
        found = self._texts.get(english, english)
        return found.format(**values) if values else found


@cache
def catalogue(language: str) -> Catalogue:
    """Return the catalogue of a language: English has no file."""
    file = _FOLDER / f"{language}.json"
    return Catalogue(language, json.loads(file.read_text(encoding="utf-8")) if language in languages() else {})


@cache
def languages() -> frozenset[str]:
    """Return the languages beside English."""
    return frozenset(file.stem for file in _FOLDER.glob("*.json"))


def chosen_language(accept: str) -> str:
    """Return the first language of the header ``Accept-Language`` that has a catalogue, else English."""
    for part in accept.split(","):
        language = part.partition(";")[0].strip().partition("-")[0].lower()
        if language == "en" or language in languages():
            return language
    return "en"
