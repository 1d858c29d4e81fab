"""Record the lives of jobs in the database of tasks."""
