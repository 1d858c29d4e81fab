"""Index a tree of Python files: one job scans, one job per file measures, one job writes the report.

``ScanTreeWorker`` -> ``IndexFileWorker`` (one per file) -> ``BuildReportWorker``; the rows lie in SQL (``tables``).
"""
