"""Hold the proofs behind docs/internals/reliability.md: each module is one, with a short version in the suite."""
