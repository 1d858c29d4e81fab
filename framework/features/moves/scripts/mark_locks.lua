-- Mark the locks of jobs that are about to be written to another shard, and return them.
-- KEYS    n locks
-- ARGV    1 guard of the page with the jobs  then n jids
-- RETURN  per lock its time to live in milliseconds, then its fields and values in turn; empty if the job does not own it
-- COST    O(n)
-- CRASH   before: a lock like any other. after: the job is in flight, and a push looks on both shards (find_owners.lua, push_unique.lua):
--         the job counts until it is written there, from then on its lock there does. Without the mark a job that has begun there
--         would hold up pushes here until its page is removed. The next mover marks it anew; the mark of a job that came back from a
--         shard that refused it does no harm, and ends as the job begins.
-- HDEL first: it is allowed at maxmemory, and as the script's first write lets HSET pass.
local found = {}
redis.pcall('HDEL', KEYS[1], '')
for i, key in ipairs(KEYS) do
  found[i] = {}
  if owner_of(key) == ARGV[1 + i] then
    found[i] = redis.call('HGETALL', key)
    table.insert(found[i], 1, redis.call('PTTL', key))
    redis.call('HSET', key, 'moved', ARGV[1])
  end
end
return found
