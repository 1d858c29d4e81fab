-- Take one job from the working list of a dead process: back to its queue, or into a sorted set (interrupted, dead).
-- KEYS    1 lease of the dead process  2 its working list  3 destination  4 set of queue names
-- ARGV    1 payload as found  2 payload to store  3 'queue' or 'set'  4 queue name
-- RETURN  1 moved, 0 somebody else did or the destination's key is of another type (the job stays), -1 the process is alive and keeps its jobs
-- COST    O(W)
-- CRASH   before: in the working list. after: at the destination. Any number of reapers may run at once.
-- That the lease is gone is asked here, in the step that moves the job: asked earlier it might be back by now.
if redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
if redis.call('LREM', KEYS[2], -1, ARGV[1]) == 0 then return 0 end
local moved
if ARGV[3] == 'queue' then
  moved = redis.pcall('RPUSH', KEYS[3], ARGV[2])
  redis.pcall('SADD', KEYS[4], ARGV[4])
else
  local now = redis.call('TIME')
  moved = redis.pcall('ZADD', KEYS[3], string.format('%.6f', tonumber(now[1]) + tonumber(now[2]) / 1000000), ARGV[2])
end
if type(moved) == 'table' then
  redis.call('RPUSH', KEYS[2], ARGV[1])
  return 0
end
return 1
