"""A job that spends its time in a database."""

import time

from sqlalchemy import create_engine, event, text

from framework import ApplicationWorker

engine = create_engine("sqlite://")


@event.listens_for(engine, "connect")
def add_sleep(connection, _record):
    connection.create_function("sleep", 1, time.sleep)


class SlowQueryWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    concurrency_limit = 4

    def perform(self) -> None:
        with engine.connect() as connection:
            connection.execute(text("select sleep(0.1)"))
