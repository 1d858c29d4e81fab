"""Keep an installation tidy: ticks in the ``cronjob`` namespace find out what is to be done, jobs of their own do it.

``PruneReportsWorker`` -> ``PruneFolderWorker`` (one per folder) · ``VacuumDatabasesWorker`` -> ``VacuumDatabaseWorker`` (one per
database) · ``ReportQueuesWorker``. A tick takes milliseconds, so that ticks never pile up, and is not retried: the next one is
the retry. What they push is: it may take long, and fail.
"""
