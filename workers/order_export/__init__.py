"""Export orders to one file, CSV or .xlsx: one job per part, and one that joins the parts.

``ExportPartWorker`` (one per 10,000 orders) -> from the last part, ``JoinPartsWorker``. The application calls
``exports.create(...)``, and pushes the parts in a task, which is complete when the file is there.
"""
