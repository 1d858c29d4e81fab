-- Take jobs out of a sorted set, to be written to another shard.
-- KEYS    1 sorted set  2 list of the jobs that leave it
-- ARGV    members as they were read
-- RETURN  a list per member: 1 taken, 0 it is no longer there
-- ERROR   the list's key is of another type, or may not be written: the member is back in its set
-- COST    O(n log N)
-- CRASH   before: in the set. after: in the list, as its score, a line feed, and its bytes; `page.lua` or `restore.lua` goes on. The
--         ZREM that finds a member takes it: pollers and other movers may race.
-- ZREM first: it is allowed at maxmemory, and as the script's first write lets LPUSH pass.
local taken = {}
for i, member in ipairs(ARGV) do
  local score = redis.call('ZSCORE', KEYS[1], member)
  taken[i] = redis.call('ZREM', KEYS[1], member)
  if taken[i] == 1 then
    local put = redis.pcall('LPUSH', KEYS[2], score .. '\n' .. member)
    if type(put) == 'table' then
      redis.call('ZADD', KEYS[1], score, member)
      return put
    end
  end
end
return taken
