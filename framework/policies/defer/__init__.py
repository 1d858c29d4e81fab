"""Jobs that are put off: while a flag says so, or a database is unwell."""
