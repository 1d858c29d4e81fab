-- Obtain an exclusive lease, if no other holder has it.
-- KEYS    1 lease (HASH: token, holder, since)  2 leases (ZSET)
-- ARGV    1 name  2 token  3 holder, for readers  4 milliseconds until the lease ends
-- RETURN  {1 obtained, '', ''} or {0 another has it, its holder, milliseconds until it ends}
-- COST    O(log N + leases that have ended)
-- CRASH   before: not obtained. after: obtained, and it ends by itself after ARGV[4]. The same token again has it already.
-- First, because it is allowed at maxmemory.
local now = redis_now()
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now))
local token = redis.call('HGET', KEYS[1], 'token')
if token and token ~= ARGV[2] then
  return { 0, redis.call('HGET', KEYS[1], 'holder') or '', tostring(redis.call('PTTL', KEYS[1])) }
end
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'holder', ARGV[3])
redis.call('HSETNX', KEYS[1], 'since', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.6f', now + ARGV[4] / 1000), ARGV[1])
return { 1, '', '' }
