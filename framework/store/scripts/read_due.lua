-- Return the due jobs. Reads only.
-- KEYS    1 sorted set
-- ARGV    1 most members
-- RETURN  the server's time in seconds as text, then each member and its score, earliest first
-- COST    O(log N + limit)
-- CRASH   nothing moves. Redis's clock decides.
local seconds = string.format('%.6f', redis_now())
return {seconds, unpack(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', seconds, 'WITHSCORES', 'LIMIT', 0, ARGV[1]))}
