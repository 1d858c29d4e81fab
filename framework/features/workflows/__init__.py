"""Run batches of jobs one after the other, as steps."""
