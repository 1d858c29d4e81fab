-- Move jobs from this process's working list to a sorted set, each due after a delay (a retry, a snooze or a deferral).
-- KEYS    1 working list  2 sorted set (retry or schedule)
-- ARGV    per job, 100 at most: payload as fetched, payload to store, delay in seconds, what it holds (parts/release.lua)
-- RETURN  what move_to_set returns (parts/move_to_set.lua): mostly nothing
-- ERROR   the set's key is of another type: the jobs are back in the working list
-- COST    O(n * (W + log N))
-- CRASH   before: still in the working list. after: in the set. Redis's clock decides when they are due.
-- Before the removal: an ACL may refuse it.
local now = redis_now()
return (move_to_set(1, function(at) return seconds_text((now + ARGV[at + 2]) * 1000000) end, {}))
