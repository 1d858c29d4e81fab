"""Test scripts/attributes: the list, the text of an attribute, and the generated parts of the documentation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from framework.application_worker import ATTRIBUTES, CONSTRAINTS
from framework.declare.attribute import GROUPS
from framework.devtools.commands.attributes import PageError, all_commands, fill_page, generated_parts, names_of
from tests.fork_server import FORK_SERVER
from tests.tables import each_row

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "scripts" / "attributes")
    return FORK_SERVER.run([script, *arguments], cwd, {**os.environ, "COLUMNS": "100"})


def words(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def test_attributes_pages_of_this_checkout_are_current():
    done = run("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_attributes_without_arguments_lists_all_by_group():
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines()[:-1]:
        if line and not line.startswith(" "):
            group = found.setdefault(line.partition(":")[0], [])
        elif line.startswith("  ") and line[2] != " ":
            group.append(line.split()[0])
    assert list(found) == list(GROUPS)
    for group, names in found.items():
        assert names == [name for name, one in ATTRIBUTES.items() if one.group == group]
    assert "urgency 'low' one of 'high', 'low', 'throttled'" in words(done.stdout)
    assert "feature_category None" in words(done.stdout)


def test_attributes_of_a_name_prints_the_whole_text(tmp_path: Path):
    (tmp_path / "own.py").write_text(
        "from framework.job_options import declare_option\ndeclare_option('audit', bool, default=False, doc='Who looked.')\n"
    )
    assert "application: the options that the application declares audit False" in words(
        run("-r", "own", cwd=tmp_path).stdout
    )
    assert "audit (application) Meaning Who looked." in words(run("-r", "own", "audit", cwd=tmp_path).stdout)
    missing = run("-r", "onw", cwd=tmp_path)
    assert (missing.returncode, "did you mean 'own'?" in missing.stderr) == (1, True)
    done = run("retry", "urgency")
    output, retry, urgency = words(done.stdout), ATTRIBUTES["retry"], ATTRIBUTES["urgency"]
    assert done.returncode == 0
    for text in (retry.meaning, retry.allowed, "Default True", retry.effect, retry.trap, urgency.trap):
        assert words(text) in output
    assert all(str(rule) in output and rule.reason in output and rule.remedy in output for rule in CONSTRAINTS)
    assert "forbids" not in run("tags").stdout


def test_attributes_unknown_name_suggests_the_nearest():
    done = run("retry", "urgancy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "there is no attribute 'urgancy' (did you mean 'urgency'?)\n"


@pytest.mark.parametrize("arguments", [("retry", "--write"), ("--check", "--write"), ("--check", "--docs", "nowhere")])
def test_attributes_wrong_usage_status_2(arguments: tuple[str, ...]):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_attributes_write_updates_stale_pages(tmp_path: Path):
    docs = tmp_path / "docs"
    (docs / "guide").mkdir(parents=True)
    page, other = docs / "guide" / "retries.md", docs / "other.md"
    page.write_text("# Retries\n\n<!-- attributes: retry dead -->\nold\n<!-- /attributes -->\n\n## Example\n")
    other.write_text("# Nothing generated\n")
    checked = run("--check", "--docs", str(docs))
    assert (checked.returncode, checked.stdout) == (1, "")
    assert checked.stderr.splitlines()[0] == "stale: docs/guide/retries.md"
    assert "old" in page.read_text()

    written = run("--write", "--docs", str(docs))
    assert (written.returncode, written.stdout) == (0, "wrote docs/guide/retries.md\n")
    text = page.read_text()
    assert text.startswith("# Retries\n\n<!-- attributes: retry dead -->\n- **`retry`**: ")
    assert text.endswith(".\n<!-- /attributes -->\n\n## Example\n")
    assert run("--check", "--docs", str(docs)).returncode == 0
    again = run("--write", "--docs", str(docs))
    assert (again.returncode, page.read_text()) == (0, text)


def test_fill_page_keeps_text_between_generated_parts():
    page = (
        "a\n<!-- attributes: rules -->\n<!-- /attributes -->\nb\n"
        "<!-- commands: cron list, jobs limits -->\n<!-- /commands -->\nc\n"
    )
    text = fill_page(page)
    rules, commands = generated_parts()["attributes"]["rules"], generated_parts()["commands"]
    assert text == (
        f"a\n<!-- attributes: rules -->\n{rules}\n<!-- /attributes -->\nb\n"
        f"<!-- commands: cron list, jobs limits -->\n{commands['cron list']}\n{commands['jobs limits']}\n<!-- /commands -->\nc\n"
    )
    assert fill_page(text) == text


def test_text_of_an_attribute_has_values_meaning_and_trap():
    for name, one in ATTRIBUTES.items():
        text = generated_parts()["attributes"][name]
        assert all(part in text for part in (one.allowed, one.meaning, one.trap))
        assert "\n" not in text
    assert all(f"`{rule}`" in generated_parts()["attributes"]["rules"] for rule in CONSTRAINTS)


def test_text_of_a_command_names_required_options():
    commands = generated_parts()["commands"]
    assert commands["cron next"] == (
        "- **`cron next ENTRY`**: Show the next ticks of ENTRY, in its time zone and in UTC."
    )
    assert commands["cron disable"].endswith(" It needs `--reason`.")
    assert commands["cron next"] in commands["cron"]


@each_row(
    ("page", "message"),
    [
        ("\n<!-- attributes: retyr -->\n<!-- /attributes -->\n", r"2: there is no part 'retyr' \(did you mean 'retry'\?\)"),
        ("<!-- commands: cron lits -->\n<!-- /commands -->\n", "1: there is no part 'cron lits'"),
        ("<!-- attributes: retry dead -->\n", "2: .*of retry dead is missing"),
        ("<!-- /attributes -->\n", "1: .* closes nothing"),
        ("<!-- attributes: queue -->\n<!-- attributes: retry -->\n<!-- /attributes -->", "2: .* of queue"),
    ],
)  # fmt: skip
def test_fill_page_invalid_marker_is_named_with_its_line(page: str, message: str):
    with pytest.raises(PageError, match=message):
        fill_page(page)


def test_attributes_invalid_page_status_1_writes_no_page(tmp_path: Path):
    (tmp_path / "a.md").write_text("<!-- attributes: queue -->\n<!-- /attributes -->\n")
    (tmp_path / "b.md").write_text("<!-- attributes: queue -->\n")
    done = run("--write", "--docs", str(tmp_path))
    assert done.returncode == 1
    assert "b.md:2: " in done.stderr
    assert (tmp_path / "a.md").read_text() == "<!-- attributes: queue -->\n<!-- /attributes -->\n"


def test_every_attribute_has_a_group_and_texts():
    assert {one.group for one in ATTRIBUTES.values()} == set(GROUPS)
    for name, one in ATTRIBUTES.items():
        for text in (one.meaning, one.effect, one.trap):
            assert text.endswith("."), name
            assert "\n" not in text, name
            assert "|" not in text, name  # the character would end the cell of a table


def test_attributes_runs_as_an_installed_command():
    done = subprocess.run(
        [sys.executable, "-m", "framework", "attributes", "queue"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "queue (queues)")


def test_each_attribute_and_command_is_on_one_page():
    markers = re.compile(r"^<!-- (attributes|commands): *([^>]*?) *-->$", re.MULTILINE)
    found: dict[str, list[str]] = {"attributes": [], "commands": []}
    commands = [name for name, _ in all_commands()]
    for page in (ROOT / "docs").rglob("*.md"):
        for word, listed in markers.findall(page.read_text()):
            found[word] += names_of(word, listed)
    shown = [name for one in found["commands"] for name in commands if name == one or name.startswith(f"{one} ")]
    assert sorted(shown) == sorted(commands)
    assert sorted(set(found["attributes"]) - {"rules"}) == sorted(ATTRIBUTES)
    assert len(found["attributes"]) == len(ATTRIBUTES) + 1
