-- Move jobs from this process's working list to the dead set, or to `interrupted`, and trim the set (Sidekiq's two limits).
-- KEYS    1 working list  2 the set
-- ARGV    1 most entries  2 longest stay in seconds  3 most refusals of the business (parts/trim.lua)
--         then per job, 100 at most: payload as fetched, payload to store, '1' for a refusal of the business, what it holds
--         (parts/release.lua)
-- RETURN  { 0, number trimmed; position of a job (from 1), 0 fenced: the process no longer owns it, and nothing was written;
--           -position, error of a lock, slot or status of a job that has moved; ... }
-- ERROR   the set's key is of another type: the jobs are back in the working list (Lua does not roll back by itself)
-- COST    O(n * (W + log N) + trimmed)
-- CRASH   before: still in the working list. after: in the set.
-- Before the removal: an ACL may refuse it.
local now, found, entries, moved = redis_now(), { 0, 0 }, {}, {}

-- Return the score of a job: each has its own, so that they stay in their order, and a digest finds its entry at once.
local function score_of(at)
  return now + (at - 4) / 4000000
end

for at = 4, #ARGV, 4 do
  if redis.call('LREM', KEYS[1], '-1', ARGV[at]) == 0 then
    found[#found + 1] = at / 4
    found[#found + 1] = 0
  else
    entries[#entries + 1] = string.format('%.6f', score_of(at))
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
for _, at in ipairs(moved) do
  local failed = ARGV[at + 3] ~= '' and late().try_release(ARGV[at + 3])
  if failed then
    found[#found + 1] = -at / 4
    found[#found + 1] = failed
  end
  if ARGV[at + 2] == '1' then
    found[2] = found[2] + note_business(KEYS[2], score_of(at), ARGV[at + 1], tonumber(ARGV[3]))
  end
end
found[2] = found[2] + trim(KEYS[2], now, tonumber(ARGV[1]), tonumber(ARGV[2]))
return found
