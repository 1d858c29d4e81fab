-- Move a job from this process's working list to a sorted set, due after a delay (a retry, or RetryLater).
-- KEYS    1 working list  2 sorted set (retry or schedule)  3 status key, if the job is tracked
-- ARGV    1 payload as fetched  2 payload to store  3 delay in seconds  4 its state  5 how many seconds that is kept, '' and 0 for no state
--         6 what it holds (parts/release.lua)
-- RETURN  1 moved, 0 fenced: the process no longer owns the job, and nothing was written
-- ERROR   the set's key is of another type: the job is back in the working list (Lua does not roll back by itself)
-- COST    O(W + log N)
-- CRASH   before: still in the working list. after: in the set. Redis's clock decides when it is due.
-- Before the removal: an ACL may refuse it.
local now = redis_now()
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
local due = now + tonumber(ARGV[3])
local added = redis.pcall('ZADD', KEYS[2], string.format('%.6f', due), ARGV[2])
if type(added) == 'table' and added.err then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return added
end
-- In the same step: an earlier write could be wrong (fenced), and a later one could overwrite the state of the next run.
if KEYS[3] then redis.pcall('SET', KEYS[3], ARGV[4], 'EX', ARGV[5]) end
release(ARGV[6])
return 1
