"""The fourth of the five jobs: calculate the prices that customers pay."""

from datetime import timedelta

from framework import ApplicationWorker, Deduplicate, DeferOnHealth
from workers.product_import import prices


class RecalculatePricesWorker(ApplicationWorker):
    """Calculate the prices of all products of a category."""

    feature_category = "product_catalogue"
    urgency = "throttled"
    # 1 had the SKU of one product, so that an import of 80,000 rows was 80,000 jobs. Both are one string: without a version,
    # a job that still waits would look for a category of that name and find nothing to do.
    version = 2
    data_consistency = "sticky"
    idempotent = True
    # Each batch of an import asks for the same few categories: one calculation while they run, and one more afterwards, as
    # the running one may not have seen the last batch.
    deduplicate = Deduplicate(
        "until_executed", ttl=timedelta(minutes=30), if_deduplicated="reschedule_once", including_scheduled=False
    )
    # Each holds the write lock for all products of a category: two at a time would only take turns.
    concurrency_limit = 1
    defer_on_health = DeferOnHealth(tables=("product_import_products",), delay=timedelta(seconds=30))
    retry = 5
    # The names of categories and products are the shop's assortment, not people's data.
    loggable_arguments = ("category", "sku")

    def perform(self, category: str) -> None:
        self.log_extra(products=prices.recalculate_category(category))

    def perform_v1(self, sku: str) -> None:
        """Run jobs that were pushed before version 2. Remove it when no release that writes them has run for three weeks."""
        self.log_extra(products=prices.recalculate_product(sku))
