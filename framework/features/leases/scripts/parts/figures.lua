-- figures_leases(now): the exclusive leases that are held.
-- COST    O(log N)
local function figures_leases(now)
  return redis.call('ZCOUNT', 'aw:exclusive_leases', string.format('%.6f', now), '+inf')
end

