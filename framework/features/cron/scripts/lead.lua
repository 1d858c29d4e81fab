-- Take, renew or release the lease of the leader.
-- KEYS    1 the lease (STRING)
-- ARGV    1 identity of the process  2 lifetime of the lease in milliseconds, 0 to release it
-- RETURN  1 the process leads, or has released its lease; 0 another process leads
-- COST    O(1)
-- CRASH   before: nothing. after: the lease, which expires. A lease only saves work: the step that pushes a tick decides which process
--         is first.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
-- First, although it may remove nothing: a removal is allowed at maxmemory, and then so is SET.
redis.call('UNLINK', KEYS[1])
if ARGV[2] ~= '0' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 1
