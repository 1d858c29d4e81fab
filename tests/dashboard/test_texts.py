"""Test the texts of the pages: each language has each text, and nothing else; the viewer's language is chosen."""

import re
from pathlib import Path

import pytest

from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.dashboard.rendering import TIME_TEXTS, UNIT_TEXTS
from framework.dashboard.texts import catalogue, chosen_language, language_names, languages
from framework.pages.page import Action

ROOT = Path(__file__).resolve().parents[2]
_CALLS = re.compile(r"""\b_\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
_OF_CLASSES = ("title", "heading", "about", "empty", "label", "hint")
"""The attributes of pages, columns, fields and actions that templates show as texts."""


def texts_of(one):
    """Return the texts of a page, an action, a column or a field, and of what these have."""
    found = {getattr(one, name) for name in _OF_CLASSES if isinstance(getattr(one, name, None), str)}
    for part in (*getattr(one, "actions", ()), *getattr(one, "columns", ()), *getattr(one, "fields", ())):
        found |= texts_of(part)
    return found - {""}


def all_texts():
    """Return each text of templates and pages, with where it is."""
    found = {"English": "texts.py", **dict.fromkeys((*UNIT_TEXTS, *TIME_TEXTS), "rendering.py")}
    for file in ROOT.glob("framework/**/templates/*.html"):
        found |= dict.fromkeys((double or single for double, single in _CALLS.findall(file.read_text())), file.name)
    for page in all_pages():
        found |= dict.fromkeys(texts_of(page), type(page).__name__)
    return found


def known(language):
    return catalogue(language).texts


def is_word_of_a_feature(text):
    """Return whether the code of a feature has the text: a state that a table shows as a tag."""
    return any(f'"{text}"' in file.read_text() for file in ROOT.glob("framework/features/**/*.py"))


@pytest.mark.parametrize("language", sorted(languages()))
def test_each_language_has_each_text_and_no_other(language):
    texts = all_texts()
    assert len(texts) > 200
    assert {text: where for text, where in texts.items() if text not in known(language)} == {}
    assert [text for text in known(language) if text not in texts and not is_word_of_a_feature(text)] == []
    for text, translated in known(language).items():
        assert translated.strip(), text
        assert set(re.findall(r"{(\w+)}", translated)) == set(re.findall(r"{(\w+)}", text)), text


def test_language_is_the_first_with_a_catalogue():
    assert chosen_language("zh-CN,zh;q=0.9,en;q=0.8") == "zh"
    assert chosen_language("fr-CH, en;q=0.8, zh;q=0.1") == "en"
    assert chosen_language("en,zh") == "en"
    assert chosen_language(",xx") == "en"
    assert language_names() == {"en": "English", "zh": "简体中文"}


def test_cookie_of_the_viewer_wins_over_the_header(browser, shards):
    client = browser(Caller("ann", "read"))
    assert "队列" in client.get("/queues", headers={"accept-language": "zh"}).text
    client.cookies.set("aw_language", "en")
    assert "队列" not in client.get("/queues", headers={"accept-language": "zh"}).text


def test_action_without_label_is_no_text():
    assert texts_of(Action()) == set()
