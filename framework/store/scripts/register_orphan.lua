-- Register the owners of working lists that the registry lacks, so that sweeps find the lists.
-- KEYS    1 registry (ZSET)  2.. per list: the lease of its process, the process's notes about its runs (HASH)
-- ARGV    1.. per list: the identity of its process, the field of its capsule in the notes (empty for the first capsule)
-- RETURN  the number registered; live and known owners are left alone
-- COST    O(n log P), n lists, P processes
-- CRASH   nothing moves. An owner that is alive nevertheless has a whole lease from now on to send a heartbeat.
-- DEL, of a lease that does not exist, is allowed at maxmemory and as the script's first write lets HSETNX and ZADD pass.
local now = string.format('%.6f', redis_now())
local entered = 0
for i = 2, #KEYS, 2 do
  local identity, field = ARGV[i - 1], ARGV[i]
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('DEL', KEYS[i])
    -- A sweep finds the list of a capsule by this field; the number of its slots is unknown.
    if field ~= '' then redis.call('HSETNX', KEYS[i + 1], field, '') end
    entered = entered + redis.call('ZADD', KEYS[1], 'NX', now, identity)
  end
end
return entered
