-- Find the owners of the locks of jobs on the shard from which such jobs move, before the jobs are pushed to another shard.
-- KEYS    n locks
-- ARGV    1 n jids (JSON)  2 '1' to note duplicates in the locks, '' not to
--         3 for how many milliseconds pushes that do not know of the move are told so
--         4 JSON with the positions of all jobs, '' for none  then, where jobs differ in them, n of these
-- RETURN  per job: '' no job has its lock; the jid of the owner; or {jid of the owner, guard of the page in which it is on its way}
-- COST    O(n)
-- CRASH   before: nothing. after: a free lock says for a minute that such jobs go to another shard, whether they are pushed there or
--         not: whatever pushes here (push_unique.lua) comes again with what it finds here and there. So of two equal jobs that are pushed
--         here and there at once, one sees the other: either the push here was first, and is found by this script, or it is told.
-- HDEL first: it is allowed at maxmemory, and as a script's first write lets HSET pass.
local jids, found = cjson.decode(ARGV[1]), {}
redis.pcall('HDEL', KEYS[1], '')
for i, key in ipairs(KEYS) do
  local owner, guard = holder_of(key, jids[i])
  if not owner then
    redis.call('DEL', key)
    redis.call('HSET', key, 'moved', '')
    redis.call('PEXPIRE', key, ARGV[3])
  elseif not guard and owner ~= jids[i] and ARGV[2] ~= '' then
    local details = ARGV[4 + i] or ARGV[4]
    late().drop_duplicate({ key = key, positions = details ~= '' and cjson.decode(details).positions or {} })
  end
  found[i] = guard and owner and { owner, guard } or owner or ''
end
return found
