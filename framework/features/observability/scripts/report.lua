-- Take or renew the lease of the process that reports the figures of the shard.
-- KEYS    1 the lease (STRING)
-- ARGV    1 identity of the process  2 lifetime of the lease in milliseconds
-- RETURN  1 this process reports, 0 another one does
-- COST    O(1)
-- CRASH   before: nothing. after: the lease, which expires. Two reporters for a moment show the same figures twice.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
-- First, although it may remove nothing: a removal is allowed at maxmemory, and then so is SET.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
