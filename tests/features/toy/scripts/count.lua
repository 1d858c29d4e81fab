-- Count a round of periodic work.
-- KEYS    1 rounds (HASH)
-- ARGV    none
-- RETURN  the number of rounds
-- COST    O(1)
-- CRASH   before: the round is not counted. after: it is.
redis.call('HSET', KEYS[1], 'at', redis_now())
return redis.call('HINCRBY', KEYS[1], 'count', 1)
