"""Test the texts of the pages: each language has each text, and nothing else; the viewer's language is chosen."""

import ast
import re
import string
from functools import cache
from pathlib import Path

import pytest

from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.dashboard.rendering import TIME_TEXTS
from framework.dashboard.texts import catalogue, chosen_language, language_names, languages
from framework.feature import all_features
from framework.pages.page import Action
from framework.text import LENGTHS, Sentence, format_count, format_duration, join_names, joined

ROOT = Path(__file__).resolve().parents[2]
_CALLS = re.compile(r"""\b_\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")
_OF_CLASSES = ("title", "heading", "about", "empty", "label", "hint", "noun", "record")
"""The attributes of pages, columns, fields and actions that templates, previews and the audit log show as texts."""
_OF_COMMANDS = {
    "cli",
    "cluster",
    "declare",
    "devtools",
    "enumerators",
    "process",
    "terminal",
    "commands.py",
    "ledger.py",
}
"""Modules whose counts no page shows."""


def texts_of(one):
    """Return the texts of a page, an action, a column or a field, and of what these have."""
    found = {getattr(one, name) for name in _OF_CLASSES if isinstance(getattr(one, name, None), str)}
    for part in (*getattr(one, "actions", ()), *getattr(one, "columns", ()), *getattr(one, "fields", ())):
        found |= texts_of(part)
    return found - {""}


def all_texts():
    """Return each text of templates and pages, with where it is."""
    found = {"English": "texts.py", **dict.fromkeys((*LENGTHS, *TIME_TEXTS), "rendering.py"), **sentences()}
    for file in ROOT.glob("framework/**/templates/*.html"):
        found |= dict.fromkeys((double or single for double, single in _CALLS.findall(file.read_text())), file.name)
    nouns = {noun for feature in all_features() for noun in feature.job_groups.values()}
    for page in all_pages():
        found |= dict.fromkeys(texts_of(page), type(page).__name__)
        nouns |= {one.noun for one in page.actions if hasattr(one, "noun")}
    return found | dict.fromkeys((format_count(1, noun).template for noun in nouns), "nouns")


@cache
def sentences():
    """Return the template of each sentence in the sources, with where it is: causes, explanations, previews, refusals, records."""
    found = {}
    for file in ROOT.glob("framework/**/*.py"):
        text = file.read_text()
        if "Sentence(" in text or "format_count(" in text or "audited(" in text:
            for call in ast.walk(ast.parse(text)):
                if isinstance(call, ast.Call) and (template := template_of(call, file)):
                    found[template] = f"{file.name}:{call.lineno}"
    return found


def template_of(call, file):
    """Return the template of a sentence, of a count or of an audited action; empty for another call, and for one without words."""
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    match getattr(call.func, "attr", getattr(call.func, "id", "")):
        case "Sentence" if words:
            return words[0] if re.search("[a-z]", re.sub("{.*?}", "", words[0])) else ""
        case "format_count" if words and not _OF_COMMANDS & set(file.relative_to(ROOT).parts):
            return format_count(1, *words).template
        case "audited" if words and " " in words[0]:
            return words[0]
    return ""


def fields_of(text):
    """Return the names of the fields of a template. JSON and code in a text have none."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError:
        return set()


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
        assert fields_of(translated) == fields_of(text), text


def test_sentence_is_english_and_keeps_its_template():
    inner = format_count(2, "job", "waits")
    one = Sentence("{jobs} in {queue}, {time}", jobs=inner, queue="q{x}", time=format_duration(3_720))
    assert one == "2 jobs wait in q{x}, 1 h 2 min"
    assert str(ValueError(one)) is one.__str__() is one
    assert catalogue("zh").said(one) == "2 个作业在等待 in q{x}, 1 小时 2 分"
    assert catalogue("en").said(one) is one
    # Text of users is not translated, also if it is a text of the catalogue.
    assert catalogue("zh").said("dead") == "dead"
    assert catalogue("zh").said(joined([Sentence("once"), "dead"])) == "一次; dead"
    assert catalogue("zh").said(join_names("abc", 1)) == "a 等（另有 2 个）"


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
