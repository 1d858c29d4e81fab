"""Import products from a spreadsheet: one job splits it, one job per batch imports, one job per row with a fault reviews it, one
job per category sets prices, one job writes the report.

``SplitSpreadsheetWorker`` -> ``ImportProductsWorker`` (one per 500 rows) -> ``RecalculatePricesWorker`` (one per category
of the batch), ``ReviewRowWorker`` (one per row with a fault) and, from the last of them, ``BuildImportReportWorker``. The
application calls ``imports.create(path, task.id)`` and pushes the first job with the id in that task (``framework.tasks``).
Arguments are ids: what they stand for is looked up when the job runs.
"""
