-- Use a portion of a limit on this shard, and hand free slots to waiting jobs.
-- KEYS    1 the limit (HASH; parts/slots.lua has the others)
-- ARGV    1 portion in slots  2 its version  3 seconds until it ends, '' for no end  4 most jobs to hand over
-- RETURN  { 1 used, 0 a later one is used already; slots taken }
-- COST    O(handed * log N)
-- CRASH   before: the former portion. after: this one. A call that comes late changes nothing: versions only rise.
-- HDEL first, which is allowed at maxmemory.
local base, now = KEYS[1], redis_now()
local known = tonumber(redis.call('HGET', base, 'portion_version')) or 0
if known > tonumber(ARGV[2]) then return { 0, running(base) } end
redis.call('HDEL', base, 'portion')
local till = ARGV[3] ~= '' and ' ' .. string.format('%.6f', now + tonumber(ARGV[3])) or ''
redis.call('HSET', base, 'portion', ARGV[1] .. till, 'portion_version', ARGV[2])
free_expired(base, now)
hand_over(base, now, tonumber(ARGV[4]))
return { 1, running(base) }
