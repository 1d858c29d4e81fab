-- Put an iterating job that has stopped at an item back into its queue.
-- KEYS    1 working list  2 its queue, or the sub-queue of its level  3 set of queue names
-- ARGV    1 payload as fetched  2 payload to store  3 queue name  4 'last' behind the other jobs, 'next' in front of them
--         5 what it holds (parts/release.lua)
-- RETURN  1 it is in its queue, 0 fenced: the process no longer owns the job, and nothing was written
-- ERROR   the queue's key is of another type: the job is back in the working list
-- COST    O(W)
-- CRASH   before: still in the working list. after: in its queue. Its cursor was saved by an earlier step.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
local behind = ARGV[4] == 'last'
local pushed = redis.pcall(behind and 'LPUSH' or 'RPUSH', KEYS[2], ARGV[2])
if type(pushed) == 'table' then
  -- Where an ACL refuses RPUSH, the other end.
  if type(redis.pcall('RPUSH', KEYS[1], ARGV[1])) == 'table' then redis.call('LPUSH', KEYS[1], ARGV[1]) end
  return pushed
end
redis.pcall('SADD', KEYS[3], ARGV[3])
arrive(ARGV[3])
release(ARGV[5])
return 1
