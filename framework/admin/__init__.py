"""Looking at the jobs of a shard, and releasing what holds them: functions of the shard's client, in bounded steps."""
