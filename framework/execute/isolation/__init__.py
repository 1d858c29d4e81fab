"""Run jobs in processes of their own (``isolation = "process"``): one for each job, forked from a process without threads."""
