"""Test that campaigns run only on request."""

import pytest

SOURCE = """
import pytest

def test_short(): ...

@pytest.mark.campaign
@pytest.mark.parametrize("way", [1, 2])
def test_long(way): ...
"""


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        (["test_tiers.py"], ["test_short"]),
        (["test_tiers.py", "-m", "campaign"], ["test_long[1]", "test_long[2]"]),
        (["test_tiers.py::test_long"], ["test_long[1]", "test_long[2]"]),
        (["test_tiers.py::test_long[2]"], ["test_long[2]"]),
        (["test_tiers.py", "-k", "long"], []),
    ],
)
def test_campaign_runs_only_when_asked_for(tmp_path, monkeypatch, arguments, ran):
    (tmp_path / "test_tiers.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    monkeypatch.chdir(tmp_path)
    seen = []

    class Watch:
        def pytest_runtest_logstart(self, nodeid):
            seen.append(nodeid.rpartition("::")[2])

    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-o",
        "markers=campaign",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
    ]
    pytest.main([*arguments, *options], plugins=[Watch()])
    assert seen == ran
