-- Take or renew the lease of the process that measures the memory of the shard, and write its report, and whether memory is short.
-- KEYS    1 the lease (STRING)  2 the report (STRING)  3 the pressure (STRING)
-- ARGV    1 identity of the process  2 lifetime of the lease in milliseconds  3 the report, '' for none: the one before lives on  4 its lifetime in milliseconds
--         5 the pressure, '' for none  6 its lifetime in milliseconds
-- RETURN  1 this process measures, 0 another one does: nothing was written
-- COST    O(1)
-- CRASH   before: nothing. after: the lease, the report and the pressure, which expire. Without a report no push is held back.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if owner and ARGV[3] == '' and ARGV[5] == '' and redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return 1
end
-- First, although it may remove nothing: a removal is allowed at maxmemory, and then so is SET.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
else
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
if ARGV[5] ~= '' then redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[6]) else redis.call('UNLINK', KEYS[3]) end
return 1
