"""Test the examples of every code: the bad one has findings at the marked lines only, the good one has none."""

from framework.devtools.lint.linter import RULES
from framework.devtools.lint.rule import LintRule
from tests.devtools.lint.conftest import LintFiles, codes
from tests.tables import each_row

HERE = "# here"


@each_row("rule", RULES.values(), ids=list(RULES))
def test_rule_examples_have_the_marked_findings(rule: LintRule, lint_files: LintFiles):
    wanted = [(rule.code, number) for number, line in enumerate(rule.bad.splitlines(), 1) if line.endswith(HERE)]
    assert wanted
    if rule.code == "SEW101":
        wanted.insert(0, ("SEW001", wanted[0][1]))  # a suppression without a reason has no effect
    found = lint_files({"workers/bad.py": rule.bad})
    assert sorted(set(codes(found))) == sorted(wanted)
    assert not lint_files({"workers/bad.py": "", "workers/good.py": rule.good})
