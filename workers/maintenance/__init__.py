"""Keep an installation tidy: scheduled jobs in the ``cronjob`` namespace find the tasks, jobs of their own do them.

``PruneReportsWorker`` -> ``PruneFolderWorker`` (one per folder) · ``VacuumDatabasesWorker`` -> ``VacuumDatabaseWorker`` (one per
database) · ``ReportQueuesWorker``. A scheduled job takes milliseconds, so that such jobs never pile up. It is not retried: the
next one is the retry. The jobs that it pushes may take long and fail, so they are retried.
"""
