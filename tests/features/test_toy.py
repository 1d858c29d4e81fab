"""Add a room to the package: it needs its folder and its lines in the lists of rooms, and no file of the core."""

import json
from pathlib import Path

from tests.features.package_copy import PACKAGE, copy_with

TOY = Path(__file__).resolve().parent / "toy"
BASES = {
    "application_worker.py": {"ApplicationWorker": "ToyAttributes", "PushOptions": "ToyOptions"},
    "all_settings.py": {"Settings": "ToySettings"},
}

JOBS = """
from framework import ApplicationWorker

class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self) -> None:
        print("performed", self.jid, flush=True)

class LabelledWorker(PlainWorker):
    toy_label = "green"

class FailingWorker(LabelledWorker):
    retry = 1

    def perform(self) -> None:
        raise ValueError("a failure")
"""

RUNS = """
import json, time
from dataclasses import replace

from framework import timings
from framework.declare import port
timings.use(replace(timings.STANDARD, sweep_period_s=0.05))
from framework.embedding import EmbeddedWorker
from toy_jobs import FailingWorker, LabelledWorker, PlainWorker

client = port.current().shards["main"].client

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

pushed = {
    "plain": PlainWorker.perform_async(),
    "class": LabelledWorker.perform_async(),
    "option": LabelledWorker.set(toy_label="blue").perform_async(),
    "refused": LabelledWorker.set(toy_label="no").perform_async(),
    "failing": FailingWorker.perform_async(),
    "later": LabelledWorker.perform_in(3600),
}
print(json.dumps(pushed))
print(json.dumps([json.loads(one) for one in client.lrange("queue:default", 0, -1)]))
with EmbeddedWorker(["default"], concurrency=1):
    until(lambda: len(client.hgetall("aw:toy:labels")) == 4)
    until(lambda: int(client.hget("aw:toy:rounds", "count") or 0) > 2)
try:
    LabelledWorker.set(toy_label="two words")
except Exception as error:
    print(error)
try:
    class WrongWorker(PlainWorker):
        toy_label = 5
except Exception as error:
    print(error)
"""


COMMANDS = """
import json, sys
from click.testing import CliRunner
from framework.cli.main import main

done = [CliRunner().invoke(main, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[one.exit_code, one.stdout] for one in done]))
"""


def same(folder: Path, name: Path) -> bool:
    return (PACKAGE / name).exists() and (folder / name).read_bytes() == (PACKAGE / name).read_bytes()


def test_a_new_room_changes_no_file_of_the_core(cold_site, tmp_path):
    copy = copy_with(TOY, BASES, tmp_path / "copy")
    files = [
        path.relative_to(copy / "framework") for path in (copy / "framework").rglob("*.*") if "pycache" not in str(path)
    ]
    changed = {
        str(name) for name in files if name.parts[:2] != ("features", "toy") and not same(copy / "framework", name)
    }
    assert changed == {"features/order.py", "application_worker.py", "all_settings.py"}
    (cold_site.folder / "toy_jobs.py").write_text(JOBS)
    cold_site.write("application.yml", {"toy_refused": "no"})
    done = cold_site.run("-c", RUNS, role="worker", PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stderr
    pushed, payloads, *performed, option, attribute = done.stdout.splitlines()
    jids = json.loads(pushed)
    assert {one["jid"]: one.get("toy_label") for one in json.loads(payloads)} == {
        jids["plain"]: None,
        jids["class"]: "green",
        jids["option"]: "blue",
        jids["refused"]: "no",
        jids["failing"]: "green",
    }
    assert sorted(performed) == sorted(f"performed {jids[name]}" for name in ("plain", "class", "option"))
    assert option.endswith(
        "set(toy_label='two words') is not allowed. Allowed: a name of letters, digits and underscores."
    )
    assert "toy_label = 5 is not allowed" in attribute

    commands = (["--help"], ["jobs", "stats"], ["toy"], ["jobs", "explain", jids["later"], "--json", "-r", "toy_jobs"])
    done = cold_site.run("-c", COMMANDS, json.dumps(commands), role="operator", PYTHONPATH=str(copy))
    assert done.returncode == 0, done.stderr
    statuses, (shown_help, stats, counts, explanation) = zip(*json.loads(done.stdout), strict=True)
    assert statuses == (0, 0, 0, 0), done.stdout
    assert "Show the counts of labels." in shown_help
    assert "main: the toy has counted 4 labels" in stats
    assert counts.splitlines() == ["blue done 1", "green done 1", "green failed 1", "no done 1"]
    (explained,) = json.loads(explanation)["found"]
    assert explained["holds"] == ["the label green"]
