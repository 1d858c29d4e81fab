"""Test SEW032: the wire name of a class differs from the last release, and no class has the released name."""

from pathlib import Path

import pytest

from framework.devtools.lint.linter import LintConfig, lint
from framework.devtools.lint.rule import LintFinding
from framework.devtools.lint.workspace import ApplicationFacts, read_workspace
from tests.devtools.lint.conftest import LintFiles, codes, worker, write

MAIL = {"MailWorker": "workers.mail.MailWorker"}
KEEP = 'write wire_name = "MailWorker" to keep the name'
MOVED = "workers/mail/sending.py"


PACKAGE = {"workers/mail/__init__.py": ""}


def moved(found: list[LintFinding]) -> list[str]:
    return [f"{one.path.name}:{one.line}" for one in found if one.code == "SEW032"]


def test_module_that_became_a_package_is_found_with_the_fix(lint_files: LintFiles):
    (one,) = lint_files(
        PACKAGE | {MOVED: worker()}, known=ApplicationFacts(released=MAIL, released_file="generated/released.yml")
    )
    assert (one.path.name, one.line, one.code) == ("sending.py", 4, "SEW032")
    assert one.message == (
        "the wire name of MailWorker is Mail::MailWorker, which generated/released.yml does not have, and no class runs "
        "jobs of MailWorker"
    )
    assert one.fix == (
        'write wire_name = "MailWorker" to keep the name, or aliases = ("MailWorker",) to take the new one; '
        "where the class of MailWorker was removed, name that in retired_workers"
    )


@pytest.mark.parametrize("line", ['wire_name = "MailWorker"', 'aliases = ("MailWorker",)', "aliases = ['MailWorker']"])
def test_moved_class_with_released_wire_name_is_not_found(line: str, lint_files: LintFiles):
    assert not moved(lint_files(PACKAGE | {MOVED: worker(line)}, known=ApplicationFacts(released=MAIL)))


def test_moved_class_with_other_wire_name_is_found_there(lint_files: LintFiles):
    (one,) = lint_files(
        PACKAGE | {MOVED: worker('wire_name = "Post::MailWorker"')}, known=ApplicationFacts(released=MAIL)
    )
    assert (one.code, one.line) == ("SEW032", 5)
    assert one.message.startswith("the wire name of MailWorker is Post::MailWorker, which")
    (one,) = lint_files(PACKAGE | {MOVED: worker("aliases = ('OldWorker',)")}, known=ApplicationFacts(released=MAIL))
    assert 'or aliases = ("OldWorker", "MailWorker") to take' in one.fix


@pytest.mark.parametrize(
    "path", ["workers/mail.py", "workers/mail/__init__.py", "workers/post.py"], ids=["same", "package", "other module"]
)
def test_move_that_keeps_the_wire_name_is_not_found(path: str, lint_files: LintFiles):
    assert not lint_files({path: worker()}, known=ApplicationFacts(released=MAIL))


def test_new_class_beside_the_released_one_is_not_found(lint_files: LintFiles):
    known = ApplicationFacts(released=MAIL)
    files = {"workers/mail.py": worker(), "workers/other/__init__.py": "", "workers/other/mail.py": worker()}
    assert not lint_files(files, known=known)
    assert not lint_files(files, "workers/other/mail.py", known=known)
    excluded = LintConfig(Path("/"), exclude=("*/workers/mail.py",))
    assert not lint_files(files, config=excluded, known=known)


def test_released_class_with_an_unknown_base_has_its_name(lint_files: LintFiles):
    files = {"workers/mail.py": worker(bases="Elsewhere", head="from elsewhere import Elsewhere")}
    assert not lint_files({**files, **PACKAGE, MOVED: worker()}, known=ApplicationFacts(released=MAIL))


@pytest.mark.parametrize("line", ["wire_name = compute()", "aliases = FORMER"])
def test_moved_class_with_computed_name_is_not_found(line: str, lint_files: LintFiles):
    known = ApplicationFacts(released=MAIL)
    assert not moved(lint_files(PACKAGE | {MOVED: worker(line)}, known=known))
    assert not moved(
        lint_files(
            PACKAGE | {MOVED: worker(line), "workers/new/__init__.py": "", "workers/new/mail.py": worker()}, known=known
        )
    )


def test_moved_class_of_retired_name_is_not_found(lint_files: LintFiles):
    assert not lint_files(PACKAGE | {MOVED: worker()}, known=ApplicationFacts(released=MAIL, retired=("MailWorker",)))


def test_moved_class_without_a_release_is_not_found(lint_files: LintFiles):
    assert not lint_files(PACKAGE | {MOVED: worker()}, known=ApplicationFacts())
    assert not lint_files(
        PACKAGE | {MOVED: worker()}, known=ApplicationFacts(released={"EmailWorker": "", "Mail::MailWorker": ""})
    )


def test_moved_abstract_class_is_not_found(lint_files: LintFiles):
    base = "TeamWorker, abstract=True"
    known = ApplicationFacts(released=MAIL)
    assert not lint_files(PACKAGE | {MOVED: worker(bases=base)}, known=known)
    assert not lint_files(PACKAGE | {MOVED: worker('wire_name = "X::MailWorker"', bases=base)}, known=known)
    assert moved(lint_files(PACKAGE | {MOVED: worker(), "workers/mail_base.py": worker(bases=base)}, known=known)) == [
        "sending.py:4"
    ]


def test_nested_class_has_the_name_of_its_outer_class(lint_files: LintFiles):
    text = "from workers.base import TeamWorker\nclass Outer:\n    class MailWorker(TeamWorker):\n        def perform(self): ..."
    assert not lint_files(
        {"workers/a/__init__.py": "", "workers/a/b.py": text},
        known=ApplicationFacts(released={"A::Outer::MailWorker": ""}),
    )
    (one,) = lint_files(
        {"workers/a/__init__.py": "", "workers/a/b.py": text},
        known=ApplicationFacts(released={"Outer::MailWorker": ""}),
    )
    assert 'wire_name = "Outer::MailWorker"' in one.fix
    inside = (
        "from workers.base import TeamWorker\nclass Outer:\n    def make():\n        class MailWorker(TeamWorker):\n"
        "            def perform(self): ..."
    )
    assert not lint_files(
        {"workers/a/__init__.py": "", "workers/a/b.py": inside}, known=ApplicationFacts(released={"A::MailWorker": ""})
    )


def test_moved_class_with_two_released_names_names_both(lint_files: LintFiles):
    (one,) = lint_files(
        PACKAGE | {MOVED: worker()}, known=ApplicationFacts(released={"A::MailWorker": "", "B::MailWorker": ""})
    )
    assert one.message.endswith("no class runs jobs of A::MailWorker and B::MailWorker")
    assert 'write wire_name = "A::MailWorker" or wire_name = "B::MailWorker" to keep' in one.fix
    assert 'aliases = ("A::MailWorker",) or aliases = ("B::MailWorker",) to take' in one.fix


def test_moved_class_with_two_candidates_names_each_other(lint_files: LintFiles):
    files = PACKAGE | {MOVED: worker(), "workers/post/__init__.py": "", "workers/post/mail.py": worker()}
    first, second = lint_files(files, known=ApplicationFacts(released=MAIL))
    assert first.message.endswith("jobs of MailWorker (or it became workers.post.mail.MailWorker)")
    assert second.message.endswith("jobs of MailWorker (or it became workers.mail.sending.MailWorker)")
    files[MOVED] = worker('wire_name = "MailWorker"')
    assert not lint_files(files, known=ApplicationFacts(released=MAIL))


def test_moved_class_beside_unreadable_file_is_not_found(lint_files: LintFiles):
    files = PACKAGE | {MOVED: worker(), "workers/mail_old.py": "def broken(:\n"}
    assert [code for code, _ in codes(lint_files(files, known=ApplicationFacts(released=MAIL)))] == ["SEW100"]


def test_moved_class_loaded_from_other_module_is_not_found(tmp_path: Path):
    write(tmp_path, {"shop/__init__.py": "", "shop/sub/__init__.py": "", "shop/sub/mail.py": worker()})
    write(tmp_path, {"bills/__init__.py": "", "bills/mail.py": worker()})

    def lint_shop(known: ApplicationFacts) -> list[str]:
        tree, wanted = read_workspace([tmp_path / "shop"], tmp_path / "elsewhere", lambda _: False, known)
        return moved(lint(tree, wanted, lambda code, _: code == "SEW032")[0])

    released = {"MailWorker": ""}
    modules = {name: tmp_path / name for name in ("shop", "bills")}
    assert lint_shop(ApplicationFacts(released=released)) == ["mail.py:4"]
    assert not lint_shop(ApplicationFacts(released=released, modules=modules))


def test_class_at_its_released_place_is_known_without_settings(tmp_path: Path):
    write(tmp_path, {"shop/__init__.py": "", "shop/sub/__init__.py": "", "shop/sub/mail.py": worker()})
    write(tmp_path, {"bills/__init__.py": "from bills.mail import MailWorker", "bills/mail.py": worker()})
    for place, wanted in (
        ("bills.mail.MailWorker", []),
        ("bills.MailWorker", []),
        ("bills.post.MailWorker", ["mail.py:4"]),
    ):
        tree, files = read_workspace(
            [tmp_path / "shop"], tmp_path, lambda _: False, ApplicationFacts(released={"MailWorker": place})
        )
        assert moved(lint(tree, files, lambda code, _: code == "SEW032")[0]) == wanted


@pytest.mark.parametrize("listed", [{}, {"shop.jobs": "shop/jobs"}])
def test_moved_class_in_package_without_init_has_full_name(tmp_path: Path, listed: dict[str, str]):
    write(tmp_path, {"shop/jobs/mail.py": worker(), "shop/jobs/post/new.py": worker(name="Post")})
    modules = {name: tmp_path / place for name, place in listed.items()}
    for path, released in (("shop/jobs/mail.py", "Jobs::MailWorker"), ("shop/jobs/post/new.py", "Jobs::PostWorker")):
        known = ApplicationFacts(released={released: ""}, modules=modules)
        tree, wanted = read_workspace([tmp_path / path], tmp_path, lambda _: False, known)
        found = moved(lint(tree, wanted, lambda code, _: code == "SEW032")[0])
        assert found == ([] if "Mail" in released else ["new.py:4"])


def test_module_of_a_source_folder_has_the_name_of_the_setting(tmp_path: Path):
    write(tmp_path, {"src/shop/jobs/mail/sending.py": worker()})
    known = ApplicationFacts(
        released={"Jobs::MailWorker": ""}, modules={"shop.jobs": tmp_path / "src" / "shop" / "jobs"}
    )
    tree, wanted = read_workspace([tmp_path / "src"], tmp_path, lambda _: False, known)
    (one,) = lint(tree, wanted, lambda code, _: code == "SEW032")[0]
    assert one.message.startswith("the wire name of MailWorker is Jobs::Mail::MailWorker, which")
