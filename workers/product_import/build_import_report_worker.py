"""The last of the five jobs: write the rejected rows as a file to correct and upload again."""

import csv
import io

from framework import ApplicationWorker
from workers.atomic_write import write_atomically
from workers.database import var_dir
from workers.product_import import imports


class BuildImportReportWorker(ApplicationWorker):
    """Write the rejected rows of an import with their reasons, and finish the import."""

    feature_category = "product_catalogue"
    # The user sees "almost done" until this job has run, and it takes milliseconds.
    urgency = "high"
    data_consistency = "sticky"
    idempotent = True
    retry = 5
    track = True

    def perform(self, import_id: int) -> None:
        columns, rejected = imports.rejected(import_id)
        sheet = io.StringIO(newline="")
        # In the file's own columns, after two more, which the next import skips (and this job writes again).
        writer = csv.DictWriter(sheet, dict.fromkeys(["line", "reason", *columns]), restval="", extrasaction="ignore")
        writer.writeheader()
        count = 0
        for line, reason, cells in rejected:
            count += 1
            writer.writerow({**cells, "line": line, "reason": reason})
        report = var_dir() / "reports" / f"product-import-{import_id}.csv"
        # The file before the row: a crash in between writes the same file again.
        write_atomically(report, sheet.getvalue())
        imports.finish(import_id, report)
        self.log_extra(rejected=count)
        self.record("report", rejected=count, path=str(report))
