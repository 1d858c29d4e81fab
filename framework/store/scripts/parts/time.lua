-- redis_now(): the time of this server's clock in seconds, with a fraction of microseconds; the same for one run of a script.
-- COST    O(1)
-- CRASH   nothing moves.
local now_s
local function redis_now()
  if not now_s then
    local time = redis.call('TIME')
    now_s = tonumber(time[1]) + tonumber(time[2]) / 1000000
  end
  return now_s
end
