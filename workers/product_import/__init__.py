"""Import products from a spreadsheet: one job splits it, one job per batch imports, one job per category sets prices,
one job writes the report.

``SplitSpreadsheetWorker`` -> ``ImportProductsWorker`` (one per 500 rows) -> ``RecalculatePricesWorker`` (one per category
of the batch) and, from the last batch, ``BuildImportReportWorker``. The application calls ``imports.create(path)`` and
pushes the first job with the id. Arguments are ids: what they stand for is looked up when the job runs.
"""
