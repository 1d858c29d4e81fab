-- Open or close the breaker of a class for an operator.
-- KEYS    1 the breaker of the class (HASH)  2 marker of the pause of the class (STRING)
-- ARGV    1 class 2 'open' or 'close' 3 reason 4 seconds until the probe 5 seconds that the breaker is kept
-- RETURN  1 changed, 0 it was not open
-- COST    O(1)
-- CRASH   nothing moves. Held jobs return within seconds after the close.
if ARGV[2] == 'close' then
  local was = redis.call('HEXISTS', KEYS[1], 'state')
  redis.call('DEL', KEYS[1], KEYS[1] .. ':deaths')
  redis.call('SREM', 'aw:breakers', ARGV[1])
  local marker = redis.pcall('GET', KEYS[2])
  if type(marker) == 'string' and string.find(marker, '=breaker', 1, true) == 1 then redis.call('DEL', KEYS[2]) end
  return was
end
local now = redis_now()
redis.call('SADD', 'aw:breakers', ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'open', 'cause', 'operator', 'reason', ARGV[3], 'wait', ARGV[4],
  'until', string.format('%.6f', now + tonumber(ARGV[4])), 'opened_at', string.format('%.6f', now))
redis.call('HDEL', KEYS[1], 'probe', 'owner', 'cautious')
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
