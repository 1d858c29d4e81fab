-- Renew the slots that the running jobs of a process hold.
-- KEYS    1.. the running sets of their limits (ZSET), one per slot
-- ARGV    1 seconds until a slot that is not renewed is free again  2.. the members
-- RETURN  nothing
-- COST    O(n log N)
-- CRASH   nothing moves. A slot that is gone stays gone. PERSIST first, which is allowed at maxmemory.
local expiry = string.format('%.0f', redis_now() + tonumber(ARGV[1]))
for i, key in ipairs(KEYS) do
  redis.pcall('PERSIST', key)
  redis.pcall('ZADD', key, 'XX', expiry, ARGV[1 + i])
end
