"""Moving jobs that wait to other queues of their shard, when queues are renamed or routing rules have changed."""
