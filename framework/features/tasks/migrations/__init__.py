"""Hold the Alembic migrations of the tables of tasks. `tasks migrate` runs them."""
