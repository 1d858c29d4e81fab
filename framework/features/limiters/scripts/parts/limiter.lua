-- limiter_level(rule, limit, state, now): how much of a limiter is used, with what the step that takes more has to know.
-- limiter_limit(resized, rule, now): the limit that operators have set ("LIMIT END"), else that of the code.
-- limiter_note(known, facts, limiters, name, rule, kept_s, now, counter): counts a take, and lists the limiter where that is older than
--         a tenth of the time that it is kept. `known` has the facts `resized`, `rule` and `listed` as they were before.
-- `rule` has `kind`, `limit`, and by its kind `interval_s`, `refill` (points per second) or `lock_s`. The state is
--   concurrent  ZSET of holders; score: when the lock of the holder ends
--   bucket      HASH: `number` of the interval, `used` in it
--   window      HASH: entries `FIRST`..`LAST`, each "SINCE UNTIL AMOUNT" of takes close to each other; `first`, `last`, `total`
--   leaky, points  HASH: `level` at the time `at`; it falls at a constant rate
--   `turn`: when the last of the jobs comes back that were over the limit (not `concurrent`)
-- COST    O(1); window: O(entries that have left), at most 1,000
-- CRASH   nothing moves.
local function limiter_limit(resized, rule, now)
  local limit, ends = (resized or ''):match('^(%S+) (%S+)$')
  if limit and now < tonumber(ends) then return tonumber(limit) end
  return rule.limit
end

local function limiter_note(known, facts, limiters, name, rule, kept_s, now, counter)
  redis.call('HINCRBY', facts, counter, 1)
  local listed = tonumber(known[3] or '')
  if known[2] == rule and listed and now - listed < kept_s / 10 then return end
  redis.call('HSET', facts, 'rule', rule, 'listed', string.format('%.6f', now))
  if known[2] ~= rule then redis.call('ZREMRANGEBYSCORE', limiters, '-inf', string.format('%.6f', now)) end
  redis.call('EXPIRE', facts, kept_s)
  redis.call('ZADD', limiters, string.format('%.6f', now + kept_s), name)
end

local function limiter_window(rule, state, now)
  local facts = redis.call('HMGET', state, 'first', 'last', 'total', 'token')
  local window = { token = facts[4], first = tonumber(facts[1] or 1), last = tonumber(facts[2] or 0), used = tonumber(facts[3] or 0), gone = {} }
  while window.first <= window.last do
    local field = string.format('%d', window.first)
    local left, amount = redis.call('HGET', state, field):match('^%S+ (%S+) (%S+)$')
    if left + rule.interval_s > now then break end
    window.used, window.first = window.used - amount, window.first + 1
    window.gone[#window.gone + 1] = field
  end
  return window
end

local function limiter_level(rule, limit, state, now)
  if rule.kind == 'concurrent' then
    return { used = redis.call('ZCOUNT', state, '(' .. string.format('%.6f', now), '+inf') }
  elseif rule.kind == 'bucket' then
    local number = string.format('%d', math.floor(now / rule.interval_s))
    local facts = redis.call('HMGET', state, 'number', 'used', 'token')
    return { token = facts[3], number = number, used = facts[1] == number and tonumber(facts[2]) or 0 }
  elseif rule.kind == 'window' then
    return limiter_window(rule, state, now)
  end
  local facts = redis.call('HMGET', state, 'level', 'at', 'token', 'turn')
  local rate = rule.kind == 'points' and rule.refill or limit / rule.interval_s
  local since = facts[2] and math.max(0, now - tonumber(facts[2])) or 0
  return { token = facts[3], turn = facts[4], rate = rate, used = math.max(0, (facts[1] and tonumber(facts[1]) or 0) - since * rate) }
end
