-- Take or renew the lease of the process that measures the memory of the shard, and write its report.
-- KEYS    1 the lease (STRING)  2 the report (STRING)
-- ARGV    1 identity of the process  2 lifetime of the lease in milliseconds  3 the report, '' for none: the one before lives on  4 its lifetime in milliseconds
-- RETURN  1 this process measures, 0 another one does: nothing was written
-- COST    O(1)
-- CRASH   before: nothing. after: the lease and the report, which expire. Without a report no push is held back.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if owner and ARGV[3] == '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return 1
end
-- First, although it may remove nothing: a removal is allowed at maxmemory, and then so is SET.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if ARGV[3] ~= '' then redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4]) end
return 1
