"""Test the tests: the fastest test of each mutant of the core catches it."""

from pathlib import Path

import pytest

from tests.proofs.mutants import Copy, StaleError, mutants, verdict

ROOT = Path(__file__).resolve().parent.parent.parent
MUTANTS = mutants(ROOT)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(ROOT, tmp_path_factory.mktemp("mutants"))


def test_mutants_include_the_ten_of_the_reference():
    assert {f"m{number}" for number in range(1, 11)} <= {one.number for one in MUTANTS}
    assert all(one.breaks.endswith(".") and one.catches for one in MUTANTS)


def test_every_mutant_patch_applies(copy):
    """Held at each landing: a moved line makes a patch stale, and the campaign would find it much later."""
    for one in MUTANTS:
        copy.apply(one)
        copy.undo(one)


@pytest.mark.campaign
@pytest.mark.proves("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10")
@pytest.mark.parametrize("mutant", [pytest.param(one, id=one.name) for one in MUTANTS])
def test_mutant_is_caught(copy, mutant):
    copy.apply(mutant)
    try:
        catch = mutant.catches[0]
        assert verdict(copy.test(catch.test), catch.words) == ""
    finally:
        copy.undo(mutant)


def test_stale_mutant_patch_raises(copy, tmp_path):
    stale = tmp_path / "m99-stale.patch"
    stale.write_text(MUTANTS[0].path.read_text().replace("-        ", "-        # gone "))
    with pytest.raises(StaleError, match="regenerate"):
        copy.apply(mutants_of(stale))


def mutants_of(path):
    folder = path.parent / "tests" / "mutants"
    folder.mkdir(parents=True)
    path.rename(folder / path.name)
    (found,) = mutants(path.parent)
    return found


def test_passing_or_broken_test_catches_no_mutant(copy):
    trial_file = copy.folder / "tests" / "test_trial.py"
    trial_file.write_text("import no_such_module\n")
    assert "could not be run" in verdict(copy.test("tests/test_trial.py"), "")
    trial_file.write_text("def test_it():\n    assert not 'I1'\n")
    failed = copy.test("tests/test_trial.py")
    assert verdict(failed, "I1") == ""
    assert "did not say 'I2'" in verdict(failed, "I2")
    failed.returncode = 0
    assert verdict(failed, "I1") == "the test passed"
