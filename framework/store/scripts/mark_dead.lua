-- Delete the lease of a process that is known to be dead, so that other processes recover its jobs at once.
-- KEYS    1 its lease  2 registry (ZSET)
-- ARGV    1 identity
-- RETURN  1 when it was registered, else 0
-- COST    O(log P)
-- CRASH   nothing moves. A score below 0 means: seen dead at that time. The process stays registered, so that sweeps find its list.
redis.call('DEL', KEYS[1])
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[2], string.format('-%.6f', redis_now()), ARGV[1])
return 1
