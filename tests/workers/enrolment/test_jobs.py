"""Enrol offers: each fault has its words, a second run keeps the listing, and the task tells every end."""

from pathlib import Path

import pytest

from framework import BusinessError, Discard, testing
from framework.tasks import Task
from tests.tables import each_row
from tests.workers.conftest import Installation
from workers.enrolment import offers
from workers.enrolment.checks import faults_of
from workers.enrolment.enrol_product_worker import EnrolProductWorker

GOOD = {
    "title": "Hammer, 500 g",
    "ean": "4006381333931",
    "price": "12.50",
    "brand": "Ferro",
    "picture": "https://shop.example/1.jpg",
}


@each_row(
    ("change", "fault"),
    [
        ({}, None),
        ({"title": ""}, "the title is missing"),
        ({"title": "x" * 81}, "the title has 81 characters, 80 are allowed"),
        ({"title": "A Miracle"}, "the title promises what no product can: 'miracle'"),
        ({"ean": "4006381333932"}, "the EAN 4006381333932 has a wrong check digit"),
        ({"ean": "40063813339"}, "the EAN '40063813339' is not 13 digits"),
        ({"ean": "٤006381333931"}, "the EAN '٤006381333931' is not 13 digits"),
        ({"price": "12,50"}, "the price '12,50' is no number"),
        ({"price": "NaN"}, "the price NaN is not between 0 and 100,000"),
        ({"price": "0"}, "the price 0 is not between 0 and 100,000"),
        ({"brand": "Rolox"}, "the brand Rolox may be sold by its own shop only"),
        ({"picture": "http://shop.example/1.jpg"}, "there is no picture with an https address"),
    ],
)
def test_offer_with_a_fault_is_told_which(change, fault):
    assert faults_of(GOOD | change) == ([] if fault is None else [fault])


def test_enrolment_tells_each_end_in_its_task(installation: Installation, tmp_path: Path) -> None:
    rows = [{"sku": "A1", **GOOD}, {"sku": "A2", **GOOD, "price": "0", "picture": ""}]
    lines = [",".join(f'"{cell}"' for cell in row.values()) for row in rows]
    feed = tmp_path / "feed.csv"
    feed.write_text("\n".join([",".join(rows[0]), *lines, ""]))
    skus = offers.load("S-7", feed)
    with Task.create(EnrolProductWorker, owner="S-7") as task:
        task.perform_bulk(EnrolProductWorker, [("S-7", sku) for sku in [*skus, "gone"]])
    testing.drain(raise_errors=False)
    assert task.progress().counts == {"enqueue": 0, "working": 0, "finish": 2, "failed": 1, "error": 0}
    (failed,) = task.failures()
    expected = "A2: the price 0 is not between 0 and 100,000; there is no picture with an https address"
    assert (failed.params, failed.reason) == (["S-7", "A2"], expected)
    listing = offers.enrol("S-7", "A1")
    EnrolProductWorker.perform_inline("S-7", "A1")
    assert (offers.enrol("S-7", "A1"), offers.count_listings("S-7")) == (listing, 1)
    offers.load("S-7", feed)
    assert offers.count_listings("S-7") == 0
    with pytest.raises(BusinessError, match="A2"):
        EnrolProductWorker.perform_inline("S-7", "A2")
    with pytest.raises(Discard, match="S-7 no longer offers gone"):
        EnrolProductWorker.perform_inline("S-7", "gone")
