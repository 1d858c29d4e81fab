-- End the pauses of queues whose time has come, and forget the ends of queues that are not paused any more.
-- KEYS    1 paused queues (SET)  2 when pauses end (HASH: queue -> seconds of Redis's clock)
-- ARGV    none
-- RETURN  the queues whose pause has ended
-- COST    O(n), n queues with an end: a handful
-- CRASH   nothing moves. Not run: the next process, or the next period, ends them.
-- Sidekiq's Pro UI removes a queue from the SET only; its end must not end a later pause.
local now = redis_now()
local ended = {}
local ends = redis.call('HGETALL', KEYS[2])
for i = 1, #ends, 2 do
  if redis.call('SISMEMBER', KEYS[1], ends[i]) == 0 then
    redis.call('HDEL', KEYS[2], ends[i])
  elseif (tonumber(ends[i + 1]) or 0) <= now then
    redis.call('HDEL', KEYS[2], ends[i])
    redis.call('SREM', KEYS[1], ends[i])
    ended[#ended + 1] = ends[i]
  end
end
return ended
