"""Test the reading of workers without running them: bases in other files, computed values, invalid files."""

from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from framework.devtools.lint.linter import GITLAB, SETS, LintConfig, lint
from framework.devtools.lint.module import UnreadableError, parse
from framework.devtools.lint.workspace import ApplicationFacts, Workspace, read_workspace
from tests.devtools.lint.conftest import CATEGORIES, LintFiles, codes, worker, write
from tests.harness import examples


def test_lint_imports_and_runs_no_worker_module(lint_files: LintFiles):
    assert not lint_files({"workers/loud.py": "raise SystemExit('imported')\n"})


@pytest.mark.parametrize(
    "head",
    [
        "from workers.base import TeamWorker as Base",
        "from .base import TeamWorker as Base",
        "from . import base\nclass Base(base.TeamWorker, abstract=True): ...",
        "import workers.base\nclass Base(workers.base.TeamWorker, abstract=True): ...",
        "import workers.base as b\nclass Base(b.TeamWorker, abstract=True): ...",
        "from workers.exports import Base",
        "from workers.exports import *",
        "try:\n    from workers.exports import Base\nexcept ImportError:\n    from workers.base import TeamWorker as Base",
    ],
)
def test_lint_base_class_in_another_file_is_found(head: str, lint_files: LintFiles):
    files = {
        "workers/exports/__init__.py": "from .inner import Base\n",
        "workers/exports/inner.py": "from workers.base import TeamWorker as Base\n",
    }
    line = head.count("\n") + 5
    ineffective, silent = worker("idempotent = False", bases="Base", head=head), worker(bases="Base", head=head)
    assert codes(lint_files({**files, "workers/mail.py": ineffective})) == [("SEW001", line)]
    assert not lint_files({**files, "workers/mail.py": silent})


def test_lint_reports_given_files_and_reads_the_package(lint_files: LintFiles):
    head = "from workers.mail import MailWorker"
    files = {
        "workers/mail.py": worker("retry = -1"),
        "workers/post.py": worker("weight = 0", name="Post", bases="MailWorker", head=head),
    }
    assert codes(lint_files(files, "workers/post.py")) == [("SEW018", 5)]
    assert len(lint_files(files)) == 2
    assert not lint_files(files, "workers/base.py")
    # An option of the application is known if a linted module or an imported one declares it.
    option = "from framework.job_options import declare_option\n\naudit = declare_option('audit', bool, default=False, doc='x')\n"
    imports = "from app.job_options import audit; from workers.base import TeamWorker"
    alone = {"app/__init__.py": "", "app/job_options.py": option}
    for head, found in [(imports, []), ("from workers.base import TeamWorker", [("SEW018", 5)])]:
        written = {**alone, "workers/mail.py": worker("audit = True", head=head)}
        assert codes(lint_files(written, "workers/mail.py")) == found


def test_lint_first_class_of_the_mro_decides_the_value(lint_files: LintFiles):
    mixin = "class Loose:\n    idempotent = False{}\n    defer_on_health = None"
    head = f"from workers.base import TeamWorker\n{mixin}"
    suppressed = worker(bases="Loose, TeamWorker", head=head.format("  # SEW001: every user may be told twice"))
    assert codes(lint_files({"workers/mail.py": suppressed})) == [("SEW007", 4)]
    assert not lint_files({"workers/mail.py": worker(bases="TeamWorker, Loose", head=head.format(""))})


def test_lint_value_of_a_constant_is_known(lint_files: LintFiles):
    head = "from workers import names\nfrom workers.base import TeamWorker"
    files = {
        "workers/names.py": 'TICKS = "cronjob"\n',
        "workers/mail.py": worker("queue_namespace = names.TICKS", head=head),
    }
    assert codes(lint_files(files)) == [("SEW024", 5)]


@pytest.mark.parametrize(
    "text",
    [
        worker(bases="SomeWorker", head="from elsewhere import SomeWorker"),
        worker(
            bases="Mixin, ApplicationWorker",
            head="from elsewhere import Mixin\nfrom framework import ApplicationWorker",
        ),
        worker("idempotent = bool(os.environ.get('X'))", "urgency = os.environ['URGENCY']"),
        worker("if __debug__:", "    idempotent = False", "else:", "    retry, urgency = 3, 'x'"),
        worker("if __debug__:", "    try:", "        idempotent = False", "    finally:", "        pass"),
        worker("idempotent = True", "if __debug__:", "    with x:", "        idempotent = False"),
        worker("idempotent = False", "for x in y:", "    if x:", "        idempotent = True"),
    ],
)
def test_lint_computed_value_is_no_finding(text: str, lint_files: LintFiles):
    assert not lint_files({"workers/mail.py": text})


def test_lint_unparsable_file_is_found_others_are_checked(lint_files: LintFiles):
    found = lint_files(
        {
            "workers/a.py": "def broken(:\n",
            "workers/b.py": b"# caf\xe9\n",
            "workers/c.py": b"# coding: latin-1\nNAME = '\xe9'\n",
            "workers/d.py": b"# coding: klingon\n",
            "workers/e.py": b"\0",
            "workers/f.py": "(" * 5000 + ")" * 5000,
            "workers/g.py": b"\xef\xbb\xbfimport os\r\n\r\nNAME = 1\r\n",
            "workers/z.py": worker("dead = 1"),
        }
    )
    assert [one.path.name for one in found if one.code == "SEW100"] == ["a.py", "b.py", "d.py", "e.py", "f.py"]
    assert codes(found)[-1] == ("SEW018", 5)
    assert (found[0].line, found[0].column) == (1, 12)


def test_lint_hidden_and_generated_folders_are_skipped(lint_files: LintFiles):
    broken = "def broken(:\n"
    names = (".hidden/a.py", "__pycache__/b.py", "build/c.py", "folder.py/readme.txt", "open/d.py")
    (one,) = lint_files({f"workers/{name}": broken for name in names})
    assert one.path.name == "d.py"


def test_lint_star_import_of_the_framework_is_known(lint_files: LintFiles):
    head = "from workers.base import *\nfrom framework import *"
    assert {
        code for code, _ in codes(lint_files({"workers/mail.py": worker(bases="ApplicationWorker", head=head)}))
    } == {
        "SEW001",
        "SEW005",
        "SEW007",
        "SEW016",
    }
    assert not lint_files({"workers/mail.py": worker(bases="TeamWorker", head=head)})


def test_lint_name_assigned_twice_is_no_constant(lint_files: LintFiles):
    head = "from workers.base import TeamWorker\nAGAIN = False\nif __debug__:\n    AGAIN = True"
    assert not lint_files({"workers/mail.py": worker("idempotent = AGAIN", head=head)})


def test_lint_finding_has_its_own_fix_and_keeps_braces(lint_files: LintFiles):
    (one,) = lint_files({"workers/mail.py": worker("data_consistency = 'delayed'", "retry = 0")})
    assert (one.code, one.fix) == ("SEW018", "Take 'sticky' or 'always', or allow retries.")
    unknown, refused = lint_files({"workers/mail.py": worker("feature_category = '{0}{a}{'")})
    assert "'{0}{a}{' of MailWorker" in unknown.message
    assert refused.code == "SEW018"


def test_lint_column_counts_characters(lint_files: LintFiles):
    head = "from workers.base import TeamWorker\ndef f(worker: type[TeamWorker]) -> None:\n    'é'; worker.perform_bulk([])"
    assert [(one.line, one.column) for one in lint_files({"workers/mail.py": worker(head=head)})] == [(3, 10)]


def test_lint_excluded_file_is_skipped_even_when_named(lint_files: LintFiles, tmp_path: Path):
    files = {"workers/samples/bad.py": "def broken(:\n"}
    assert len(lint_files(files)) == 1
    config = LintConfig(tmp_path, SETS[GITLAB], exclude=("workers/samples",))
    assert not lint_files(files, config=config)
    assert not lint_files(files, "workers/samples/bad.py", config=config)


def test_lint_file_outside_of_packages_finds_its_imports(tmp_path: Path):
    base = "from framework import ApplicationWorker\nclass Base(ApplicationWorker, abstract=True):\n    retry = 3\n"
    write(tmp_path, {"jobs/base.py": base, "jobs/mail.py": worker(bases="Base", head="from base import Base")})
    tree, wanted = read_workspace(
        [tmp_path / "jobs" / "mail.py"], tmp_path, lambda _: False, ApplicationFacts(CATEGORIES)
    )
    found, workers = lint(tree, wanted, lambda _code, _path: True)
    assert ({one.code for one in found}, workers) == ({"SEW001", "SEW005", "SEW007", "SEW016"}, 1)


def test_lint_of_a_thousand_workers_finds_each_error(tmp_path: Path):
    texts = {n: worker(f"retry = {3 if n % 100 else -1}", name=f"Job{n}") for n in range(1000)}
    write(tmp_path, {f"workers/job_{n}.py": text for n, text in texts.items()})
    tree, wanted = read_workspace([tmp_path / "workers"], tmp_path, lambda _: False, ApplicationFacts(CATEGORIES))
    found, workers = lint(tree, wanted, lambda _code, _path: True)
    assert workers == 1000
    assert sorted(one.path.name for one in found) == sorted(f"job_{n}.py" for n in range(0, 1000, 100))
    assert {one.code for one in found} == {"SEW018"}


# --- whatever the source ----------------------------------------------------------------------------------------------

LINES = r"""
from framework import *
from framework import ApplicationWorker as A, Deduplicate, Discard
from . import x
from x import *
import redis, random, requests as r
import a.b as A
x = y = x
if x: y = 1; y = 2
A = A
class A(A):
class B(A, B, A):
class C(ApplicationWorker, abstract=True):
class DWorker(B[int], *x, **y):
    queue_namespace = 'cronjob'
    urgency = retry = 'high'
    tags, weight = x
    deduplicate = Deduplicate(*x, **y)
    loggable_arguments = ('token', 1)
    feature_category = '\ud800'
    feature_category: 'x'
    if x:
        idempotent = lambda: random.random()
    idempotent = False  # SEW001
    # SEW001, SEWX: a é reason
    def perform(self, /, x: 'A[', *y: set[A], z: x.y = 1, **w: "\ud800") -> A:
    async def perform_v1(self, a: A | B): ...
        try: raise Discard()
        except (x, y[0]): pass
        except: pass
        finally: A.perform_async(x)
        for x in y: A.perform_async(x)
        [A.perform_async(x) for x in y]
        with a.begin() as b, bound(): x.perform_bulk()
        x.objects.get(pk=x).one()
        redis.Redis.from_url(f'{x}', 'REDIS_URL')
        x.zadd(f'', f'{x}')
        r.get(*x)
        pass
""".splitlines()
LINES.append("    retry = 0x" + "f" * 5000)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Draw Python that mostly parses: some of the lines above, in their order, with a possible indentation."""
    chosen = sorted(draw(st.lists(st.integers(0, len(LINES) - 1), max_size=25)))
    depth, lines = 0, []
    for line in (LINES[index] for index in chosen):
        wanted = (len(line) - len(line.lstrip())) // 4
        depth = min(wanted, depth)
        lines.append("    " * depth + line.lstrip())
        if line.startswith(("class", "    if", "    def")):
            lines.append("    " * (depth + 1) + "pass")
            depth += 1
    return "\n".join(lines)


@hypothesis.settings(max_examples=examples(200))
@hypothesis.given(programs() | st.text() | st.binary())
def test_lint_of_any_source_raises_no_error(source: str | bytes):
    data = source if isinstance(source, bytes) else source.encode(errors="surrogatepass")
    tree = Workspace(known=ApplicationFacts(CATEGORIES, released={"X::DWorker": "workers.y.DWorker"}))
    path = Path("workers/x.py")
    with suppress(UnreadableError):
        tree.add_module(parse(data, path, "workers.x"))
    found, _ = lint(tree, {path}, lambda _code, _path: True)
    for one in found:
        assert f"{one.message}: {one.fix}".encode()
        assert one.line <= one.end_line
