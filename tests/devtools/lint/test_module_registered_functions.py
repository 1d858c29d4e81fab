"""Test that functions registered with ``background`` are checked as the worker classes that stand for them."""

from framework.devtools.lint.workspace import ApplicationFacts
from tests.devtools.lint.conftest import LintFiles, codes

JOBS = """
import time
from datetime import datetime
import framework
from framework import Discard, background
from workers.base import TeamWorker
from workers.other import elsewhere

@background(base=TeamWorker, urgency="hihg")
def slow(day: datetime) -> None:
    time.sleep(1)

@background(
    idempotent=True,  # the other attributes are missing
)
async def bare() -> None: ...

class Bill:
    def send(self, token: str) -> None:
        try:
            raise Discard("no")
        except Exception:
            pass

send_bill = framework.background(
    Bill.send, loader=Bill, base=TeamWorker,
    loggable_arguments=("token",),
)
background(elsewhere, base=TeamWorker)
time.sleep(1)
def free(day: datetime) -> None:
    time.sleep(1)
"""


def test_registered_functions_are_checked_like_classes(lint_files: LintFiles) -> None:
    found = lint_files({"workers/jobs.py": JOBS})
    assert codes(found) == [
        ("SEW018", 9),
        ("SEW022", 10),
        ("SEW025", 11),
        ("SEW005", 16),
        ("SEW007", 16),
        ("SEW016", 16),
        ("SEW027", 22),
        ("SEW029", 27),
    ]
    assert [one.message.partition(" ")[0] for one in found[:3]] == [
        "SlowWorker.urgency",
        "SlowWorker.perform:",
        "SlowWorker",
    ]


def test_registered_function_has_its_wire_name(lint_files: LintFiles) -> None:
    """A released name that a function has is not missing; a moved function is found, with its line."""
    same = "from framework import background\nfrom workers.base import TeamWorker\n"
    send = f"{same}@background(base=TeamWorker)\ndef send(a: int) -> None: ...\n"
    bill = (
        f"{same}class Bill:\n    def send(self) -> None: ...\n\n\nbackground(Bill.send, loader=Bill, base=TeamWorker)\n"
    )
    released = {"SendWorker": "workers.send.send", "Bill::SendWorker": "workers.bill.Bill.send"}
    known = ApplicationFacts(released=released)
    assert not lint_files({"workers/send.py": send, "workers/bill.py": bill}, known=known)
    found = lint_files(
        {
            "workers/send.py": "",
            "workers/bill.py": bill,
            "workers/mails/__init__.py": "",
            "workers/mails/send.py": send,
        },
        known=known,
    )
    assert [(one.path.name, *code) for one, code in zip(found, codes(found), strict=True)] == [("send.py", "SEW032", 4)]
    assert "the wire name of SendWorker is Mails::SendWorker" in found[0].message
