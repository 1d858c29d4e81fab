-- Move a waiting job behind the other jobs of another level of its queue: an operator changes its priority.
-- KEYS    1 the list where the job waits  2 the list of its new level  3 set of queue names
-- ARGV    1 payload as it was read  2 payload to store  3 name of the first list  4 name of the second: a queue, or NAME~KEY
-- RETURN  1 moved, 0 it is no longer there, and nothing was written, -1 the key of the new level is of another type: the job stays
-- COST    O(jobs between it and the left end + log K)
-- CRASH   before: at its old place. after: at the new one, whose key has a turn. The LREM that finds the job wins: a fetch may race.
-- LREM first, which is allowed at maxmemory.
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
if type(redis.pcall('LPUSH', KEYS[2], ARGV[2])) ~= 'number' then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return -1
end
redis.pcall('SADD', KEYS[3], ARGV[4])
local queue, key = string.match(ARGV[3], '^([^~]*)~?(.*)$')
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.pcall('SREM', KEYS[3], ARGV[3])
  redis.pcall('ZREM', 'aw:turns:' .. queue, key)
end
arrive(ARGV[4])
-- It may have been the only job of the queue's own list.
turns().ring(queue)
return 1
