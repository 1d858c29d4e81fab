-- Release the lock of one holder of a concurrent limiter.
-- KEYS    1 holders (ZSET)
-- ARGV    1 holder
-- RETURN  1 released; 0 its lock had ended
-- COST    O(log N)
-- CRASH   before: the lock ends after its `lock_s`. after: the same again finds nothing.
return redis.call('ZREM', KEYS[1], ARGV[1])
