-- Renew an exclusive lease, or end it, if this holder still has it.
-- KEYS    1 lease (HASH)  2 leases (ZSET)
-- ARGV    1 name  2 token  3 milliseconds until it ends from now on, 0 to end it now
-- RETURN  1 renewed or ended, 0 it is lost: it has ended, or another holder has it, and nothing was written
-- COST    O(log N)
-- CRASH   before: the lease ends at its time. after: renewed or gone. The end of a lease, again after a lost reply, finds none.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
if ARGV[3] == '0' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], string.format('%.6f', redis_now() + ARGV[3] / 1000), ARGV[1])
return 1
