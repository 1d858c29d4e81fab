-- Read how much of a limiter is used.
-- KEYS    1 facts (HASH)  2 state (ZSET or HASH)
-- ARGV    1 rule as JSON; empty: the rule of the facts
-- RETURN  {used, limit}; nothing if the limiter is not known
-- COST    O(1); window: O(entries that have left)
-- CRASH   nothing moves.
local text = ARGV[1] ~= '' and ARGV[1] or redis.call('HGET', KEYS[1], 'rule')
if not text then return {} end
local rule, now = cjson.decode(text), redis_now()
local limit = limiter_limit(redis.call('HGET', KEYS[1], 'resized'), rule, now)
return { string.format('%.17g', limiter_level(rule, limit, KEYS[2], now).used), tostring(limit) }
