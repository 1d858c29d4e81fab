"""Enrol one product of a seller."""

from framework import ApplicationWorker
from workers.enrolment import offers


class EnrolProductWorker(ApplicationWorker):
    """Check one offer and make its listing; its faults are told to the seller by the event of the job."""

    feature_category = "onboarding"
    # The seller looks at the page of the task: each product with its end, its reason and its messages.
    track = True
    data_consistency = "sticky"
    idempotent = True
    # A seller may enrol 50,000 products; the jobs of others go on beside them.
    concurrency_limit = 20
    defer_on_health = None  # SEW007: a seller waits for it, and each job writes one row
    retry = 5
    # Numbers of sellers and products are no people's data, and the seller's page shows them.
    loggable_arguments = ("seller", "sku")

    def perform(self, seller: str, sku: str) -> None:
        # A BusinessError says why the offer cannot be enrolled: its event is `failed`, and the job is not retried.
        self.record("enrolled", listing=offers.enrol(seller, sku))
