-- Take an amount from a bucket, window, leaky or points limiter, if it is within the limit.
-- KEYS    1 facts (HASH)  2 state (HASH)  3 limiters (ZSET)
-- ARGV    1 name  2 rule as JSON  3 amount  4 token of the take  5 "1" if the caller has waited  6 seconds that unused facts are kept
--         7 "correct": add the amount, which may be negative, whatever the limit; else empty
--         8 seconds that the caller still waits, if it is a job that is scheduled again after a longer wait; else empty
-- RETURN  {1 taken or 0 over the limit, seconds until the amount may fit (empty: never), used, limit, seconds until the turn of the
--         job (empty: it has none)}
-- COST    O(log N) of the limiters; window: at most 1,000 entries that have left
-- CRASH   nothing moves. A take whose reply is lost counts; the same token again, as the next take, does not count twice. A job
--         that does not come back at its turn leaves room that no job uses.
-- EXPIRE first, which is allowed at maxmemory.
redis.call('EXPIRE', KEYS[1], ARGV[6])
local now, rule, amount = redis_now(), cjson.decode(ARGV[2]), tonumber(ARGV[3])
local known = redis.call('HMGET', KEYS[1], 'resized', 'rule', 'listed')
local limit = limiter_limit(known[1], rule, now)
local level = limiter_level(rule, limit, KEYS[2], now)
local function seconds(value) return value and string.format('%.6f', math.max(0, value)) or '' end
local function reply(taken, wait_s, turn_s)
  return { taken, seconds(wait_s), string.format('%.17g', level.used), tostring(limit), seconds(turn_s) }
end
-- Return the seconds until there is room for the amount.
local function until_room(excess)
  if amount > limit then return nil end
  if rule.kind == 'bucket' then return (level.number + 1) * rule.interval_s - now end
  if level.rate then return excess / level.rate end
  for number = level.first, level.last do
    local left, freed = redis.call('HGET', KEYS[2], string.format('%d', number)):match('^%S+ (%S+) (%S+)$')
    excess = excess - freed
    if excess <= 0 then return left + rule.interval_s - now end
  end
  return rule.interval_s
end
-- Return the seconds until the turn of a job: one turn for each call that the limiter admits, and the first when there is room. So
-- jobs that were refused together do not come back together. A fiftieth more: a job may come a little late, the next one in time.
local function take_turn(wait_s)
  if not wait_s or ARGV[8] == '' or wait_s <= tonumber(ARGV[8]) then return nil end
  local rate = level.rate or limit / rule.interval_s
  local last = tonumber(redis.call('HGET', KEYS[2], 'turn') or 0)
  local turn = math.max(now + wait_s, last + 1.02 * amount / rate)
  redis.call('HSET', KEYS[2], 'turn', string.format('%.6f', turn))
  redis.call('EXPIRE', KEYS[2], string.format('%d', math.ceil(turn - now + limit / rate) + 1))
  return turn - now
end
if level.token == ARGV[4] then return reply(1) end
-- The drain of a float may leave a rest that no take can see.
local excess = level.used + amount - limit
if excess > 1e-6 and ARGV[7] == '' then
  -- A call that waits tries again and again: it is one refusal.
  if ARGV[5] == '' then limiter_note(known, KEYS[1], KEYS[3], ARGV[1], ARGV[2], ARGV[6], now, 'refused') end
  local wait_s = until_room(excess)
  return reply(0, wait_s, take_turn(wait_s))
end
local kept_s
if rule.kind == 'bucket' then
  level.used, kept_s = level.used + amount, rule.interval_s
  redis.call('HSET', KEYS[2], 'number', level.number, 'used', string.format('%.17g', level.used), 'token', ARGV[4])
elseif rule.kind == 'window' then
  for i = 1, #level.gone, 1000 do redis.call('HDEL', KEYS[2], unpack(level.gone, i, math.min(i + 999, #level.gone))) end
  -- Takes within a thousandth of the window share one entry, which leaves with the last of them: the state stays small.
  local since, entry_amount = now, amount
  local entry = level.first <= level.last and redis.call('HGET', KEYS[2], string.format('%d', level.last))
  local began, _, sum = (entry or ''):match('^(%S+) (%S+) (%S+)$')
  if began and now - began <= rule.interval_s / 1000 then since, entry_amount = began, sum + amount
  else level.last = level.last + 1 end
  level.used, kept_s = level.used + amount, rule.interval_s
  redis.call('HSET', KEYS[2], 'first', string.format('%d', level.first), 'last', string.format('%d', level.last),
    'total', string.format('%.17g', level.used), string.format('%d', level.last),
    string.format('%.6f %.6f %.17g', since, now, entry_amount), 'token', ARGV[4])
else
  level.used = math.max(0, level.used + amount)
  kept_s = math.max(level.used / level.rate, tonumber(level.turn or 0) - now)
  redis.call('HSET', KEYS[2], 'level', string.format('%.17g', level.used), 'at', string.format('%.6f', now), 'token', ARGV[4])
end
redis.call('EXPIRE', KEYS[2], string.format('%d', math.ceil(kept_s) + 1))
if ARGV[7] == '' then limiter_note(known, KEYS[1], KEYS[3], ARGV[1], ARGV[2], ARGV[6], now, 'taken') end
if ARGV[5] == '1' then redis.call('HINCRBY', KEYS[1], 'waited', 1) end
return reply(1)
