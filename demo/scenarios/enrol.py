"""Enrol the products of a seller: one job per product, and a reason for each that fails."""

import csv
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from demo.scenarios.scenario import Figure, Scenario
from framework import ApplicationWorker
from framework.tasks import Task
from workers.enrolment import offers
from workers.enrolment.checks import has_valid_check_digit
from workers.enrolment.enrol_product_worker import EnrolProductWorker

SELLER = "S-1042"
BRANDS = ("Ferro", "Holzmann", "Aqua & Co", "Sól", "Northwind")
THINGS = ("Hammer", "Watering can", "Bread knife", "Bird house", "Garden hose", "Cookbook", "Lamp", "Cutting board")
_DAMAGES: tuple[dict[str, str], ...] = (
    {"title": ""},
    {"title": "Miracle cleaner, removes everything"},
    {"title": "Hammer " * 14},
    {"ean": "40063813339"},
    {"ean": "4006381333932"},
    {"price": "12,50"},
    {"price": "0"},
    {"price": "on request"},
    {"brand": "Rolox"},
    {"picture": ""},
    {"picture": "http://seller.example/1.jpg", "price": "-1"},
)
FAULTY_SHARE = 0.14


class Enrol(Scenario):
    title = "Enrol products of a seller, and tell which failed and why"
    default_size = 200
    workers: ClassVar[list[type[ApplicationWorker]]] = [EnrolProductWorker]
    formats = ("csv",)

    @property
    def feed(self) -> Path:
        """Return the file of the seller."""
        return self.folder / "uploads" / "offers.csv"

    def prepare(self, stopped: Callable[[], bool]) -> str:
        del stopped
        chance = random.Random(20)
        self.feed.parent.mkdir(parents=True, exist_ok=True)
        with self.feed.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["sku", "title", "ean", "price", "brand", "picture"])
            writer.writeheader()
            writer.writerows(_offer(number, chance) for number in range(1, self.size + 1))
        self._skus = offers.load(SELLER, self.feed)
        return f"{len(self._skus):,} offers"

    def begin(self) -> Task:
        with Task.create(EnrolProductWorker, title=self.feed.name, owner=SELLER) as task:
            task.perform_bulk(EnrolProductWorker, [(SELLER, sku) for sku in self._skus], context={"seller": SELLER})
        return task

    def figures(self) -> Iterator[Figure]:
        yield Figure("enrolled", f"{offers.count_listings(SELLER):,}", "products have a listing")

    def files(self) -> Iterator[tuple[str, Path]]:
        yield "Offers", self.feed


def _offer(number: int, chance: random.Random) -> dict[str, str]:
    brand, thing = chance.choice(BRANDS), chance.choice(THINGS)
    sound = {
        "sku": f"A-{number:05}",
        "title": f"{thing} {brand} no. {number}",
        "ean": _ean(400_638_000_000 + number),
        "price": f"{chance.randint(100, 20_000) / 100:.2f}",
        "brand": brand,
        "picture": f"https://seller.example/pictures/{number}.jpg",
    }
    return sound | (chance.choice(_DAMAGES) if chance.random() < FAULTY_SHARE else {})


def _ean(first: int) -> str:
    return next(text for digit in range(10) if has_valid_check_digit(text := f"{first:012}{digit}"))
