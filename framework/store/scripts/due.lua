-- Look for jobs whose time has come. Reads only.
-- KEYS    sorted sets
-- ARGV    1 most members per set
-- RETURN  per set a list of members, earliest first
-- COST    O(S * (log N + limit))
-- CRASH   nothing moves. Redis's clock decides.
local now = redis.call('TIME')
local seconds = string.format('%.6f', tonumber(now[1]) + tonumber(now[2]) / 1000000)
local reply = {}
for i = 1, #KEYS do
  reply[i] = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', seconds, 'LIMIT', 0, ARGV[1])
end
return reply
