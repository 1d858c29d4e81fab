-- redis_now(): the time of this server's clock in seconds, with a fraction of microseconds.
-- COST    O(1)
-- CRASH   nothing moves.
local function redis_now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

