"""How fresh a job's reads must be: positions of the WAL taken at the push, a replica that has come so far at the run."""
