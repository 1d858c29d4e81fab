-- figures_limiters(now): the rate limiters in use.
-- COST    O(log N)
local function figures_limiters(now)
  return redis.call('ZCOUNT', 'aw:limiters', string.format('%.6f', now), '+inf')
end

