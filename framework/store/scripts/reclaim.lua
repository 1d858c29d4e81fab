-- Recover one job from the working list of a dead process: to its queue, or to a sorted set (interrupted, dead).
-- KEYS    1 lease of the dead process  2 its working list  3 destination  4 set of queue names
--         5 status key, if the job is tracked and ends here
-- ARGV    1 payload as found  2 payload to store  3 until when it counts as dead (seconds of Redis's clock)
--         4 queue name, or that of a sub-queue; '' when the destination is a sorted set  5 the set's most entries  6 their longest stay in seconds
--         7 its state  8 how many seconds that is kept, '' and 0 for no state
--         9 what it holds (parts/release.lua)
-- RETURN  1 + entries trimmed from the set: moved, 0 another process did, or the destination's key is of another type (the job stays),
--         -1 the process is alive and keeps its jobs, or too much time has passed since it was examined
-- COST    O(jobs before it, which earlier calls could not move, + log N + trimmed)
-- CRASH   before: in the working list. after: at the destination. Any number of reapers may run at once.
-- The lease is checked in the step that moves the job: after an earlier check it might be back by now.
local now = redis_now()
if redis.call('EXISTS', KEYS[1]) == 1 or now > tonumber(ARGV[3]) then return -1 end
-- From the head, where the inspected page starts: the list of a process with thousands of slots is long.
if redis.call('LREM', KEYS[2], 1, ARGV[1]) == 0 then return 0 end
local moved
if ARGV[4] ~= '' then
  moved = redis.pcall('RPUSH', KEYS[3], ARGV[2])
  redis.pcall('SADD', KEYS[4], ARGV[4])
else
  moved = redis.pcall('ZADD', KEYS[3], string.format('%.6f', now), ARGV[2])
end
if type(moved) == 'table' then
  -- Where an ACL refuses RPUSH, the other end.
  if type(redis.pcall('RPUSH', KEYS[2], ARGV[1])) == 'table' then redis.call('LPUSH', KEYS[2], ARGV[1]) end
  return 0
end
release(ARGV[9])
if ARGV[4] ~= '' then
  arrive(ARGV[4])
  return 1
end
-- In the same step: no process handles a job that was given up again, so its state would stay `running` forever.
if KEYS[5] then redis.pcall('SET', KEYS[5], ARGV[7], 'EX', ARGV[8]) end
return 1 + trim(KEYS[3], now, tonumber(ARGV[5]), tonumber(ARGV[6]))
