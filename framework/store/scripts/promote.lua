-- Move due jobs from a sorted set to their queues; or one that cannot be read to the dead set.
-- KEYS    1 sorted set  2 set of queue names  3.. one destination per job
-- ARGV    1 number of jobs n  then n members  then n payloads to store  then n queue names ('' = destination is the dead set)
-- RETURN  number moved; a job whose destination's key is of another type is due again in a minute, and the others go on
-- COST    O(n log N)
-- CRASH   before: in the set. after: in the queue. Whoever's ZREM finds the member moves it: pollers may race.
local n = tonumber(ARGV[1])
local moved = 0
local now = tonumber(redis.call('TIME')[1])
for i = 1, n do
  if redis.call('ZREM', KEYS[1], ARGV[1 + i]) == 1 then
    local name = ARGV[1 + 2 * n + i]
    local put
    if name == '' then
      put = redis.pcall('ZADD', KEYS[2 + i], now, ARGV[1 + n + i])
    else
      put = redis.pcall('LPUSH', KEYS[2 + i], ARGV[1 + n + i])
    end
    if type(put) == 'table' then
      redis.call('ZADD', KEYS[1], now + 60, ARGV[1 + i])
    else
      if name ~= '' then redis.pcall('SADD', KEYS[2], name) end
      moved = moved + 1
    end
  end
end
return moved
