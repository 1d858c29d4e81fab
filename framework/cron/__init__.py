"""Push the jobs of the schedule: each tick of each entry once, whatever the number of processes."""
