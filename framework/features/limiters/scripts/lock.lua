-- Take a lock of a concurrent limiter, if fewer than its limit are held.
-- KEYS    1 facts (HASH)  2 holders (ZSET)  3 limiters (ZSET)
-- ARGV    1 name  2 rule as JSON  3 holder  4 "1" if the caller has waited  5 seconds that unused facts are kept
-- RETURN  {1 taken or 0 over the limit, seconds until the first lock ends by itself (empty: never), held, limit}
-- COST    O(log N) of the limiters; O(log N + M) of the holders, M of whose locks have ended
-- CRASH   nothing moves. The lock of a holder that died ends after its `lock_s`. The same holder again has its lock already.
-- EXPIRE first, which is allowed at maxmemory.
redis.call('EXPIRE', KEYS[1], ARGV[5])
local now, rule = redis_now(), cjson.decode(ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'resized', 'rule', 'listed')
local limit = limiter_limit(known[1], rule, now)
local reclaimed = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now))
if reclaimed > 0 then redis.call('HINCRBY', KEYS[1], 'reclaimed', reclaimed) end
local held = redis.call('ZCARD', KEYS[2])
local function has_lock() return { 1, '', tostring(held), tostring(limit) } end
if held >= limit then
  if redis.call('ZSCORE', KEYS[2], ARGV[3]) then return has_lock() end
  -- A call that waits tries again and again: it is one refusal.
  if ARGV[4] == '' then limiter_note(known, KEYS[1], KEYS[3], ARGV[1], ARGV[2], ARGV[5], now, 'refused') end
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  return { 0, first[2] and string.format('%.6f', first[2] - now) or '', tostring(held), tostring(limit) }
end
if redis.call('ZADD', KEYS[2], 'NX', string.format('%.6f', now + rule.lock_s), ARGV[3]) == 0 then return has_lock() end
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('EXPIRE', KEYS[2], string.format('%d', math.ceil(last[2] - now) + 1))
limiter_note(known, KEYS[1], KEYS[3], ARGV[1], ARGV[2], ARGV[5], now, 'taken')
if ARGV[4] == '1' then redis.call('HINCRBY', KEYS[1], 'waited', 1) end
return { 1, '', tostring(held + 1), tostring(limit) }
