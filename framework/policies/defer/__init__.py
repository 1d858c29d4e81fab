"""Jobs that are put off: while a database is unwell."""
