-- Register the owners of working lists that the registry lacks, so that sweeps find the lists.
-- KEYS    1 registry (ZSET)  2.. their leases
-- ARGV    1.. their identities
-- RETURN  the number registered; live and known owners are left alone
-- COST    O(n log P), n identities, P processes
-- CRASH   nothing moves. An owner that is alive nevertheless has a whole lease from now on to send a heartbeat.
-- DEL, of a lease that does not exist, is allowed at maxmemory and as the script's first write lets ZADD pass.
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
local entered = 0
for i, identity in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[1 + i]) == 0 and not redis.call('ZSCORE', KEYS[1], identity) then
    redis.call('DEL', KEYS[1 + i])
    entered = entered + redis.call('ZADD', KEYS[1], now, identity)
  end
end
return entered
