-- Move jobs from this process's working list to a sorted set, each due after a delay (a retry, a snooze or a deferral).
-- KEYS    1 working list  2 sorted set (retry or schedule)
-- ARGV    per job, 100 at most: payload as fetched, payload to store, delay in seconds, what it holds (parts/release.lua)
-- RETURN  { position of a job (from 1), 0 fenced: the process no longer owns it, and nothing was written;
--           -position, error of a lock, slot or status of a job that has moved; ... }: mostly nothing
-- ERROR   the set's key is of another type: the jobs are back in the working list (Lua does not roll back by itself)
-- COST    O(n * (W + log N))
-- CRASH   before: still in the working list. after: in the set. Redis's clock decides when they are due.
-- Before the removal: an ACL may refuse it.
local now, found, entries, moved = redis_now(), {}, {}, {}
for at = 1, #ARGV, 4 do
  if redis.call('LREM', KEYS[1], '-1', ARGV[at]) == 0 then
    found[#found + 1] = (at + 3) / 4
    found[#found + 1] = 0
  else
    entries[#entries + 1] = string.format('%.6f', now + tonumber(ARGV[at + 2]))
    entries[#entries + 1] = ARGV[at + 1]
    moved[#moved + 1] = at
  end
end
if #moved == 0 then return found end
local added = redis.pcall('ZADD', KEYS[2], unpack(entries))
if type(added) == 'table' and added.err then
  for _, at in ipairs(moved) do redis.call('RPUSH', KEYS[1], ARGV[at]) end
  return added
end
-- In the same step: an earlier write could be wrong (fenced), and a later one could overwrite the state of the next run.
for _, at in ipairs(moved) do
  if ARGV[at + 3] ~= '' then
    local failed = late().try_release(ARGV[at + 3])
    if failed then
      found[#found + 1] = -(at + 3) / 4
      found[#found + 1] = failed
    end
  end
end
return found
