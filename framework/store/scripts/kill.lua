-- Move jobs from this process's working list to the dead set, or to `interrupted`, and trim the set (Sidekiq's two limits).
-- KEYS    1 working list  2 the set
-- ARGV    1 most entries  2 longest stay in seconds  3 most refusals of the business (parts/trim.lua)
--         then per job, 100 at most: payload as fetched, payload to store, '1' for a refusal of the business, what it holds
--         (parts/release.lua)
-- RETURN  { 0, number trimmed, then what move_to_set returns (parts/move_to_set.lua) }
-- ERROR   the set's key is of another type: the jobs are back in the working list
-- COST    O(n * (W + log N) + trimmed)
-- CRASH   before: still in the working list. after: in the set.
-- Before the removal: an ACL may refuse it.
local now = redis_now()
-- Each job has its own score, so that they stay in their order, and a digest finds its entry at once.
local function score_of(at)
  return seconds_text(now * 1000000 + (at - 4) / 4)
end

local found, moved = move_to_set(4, score_of, { 0, 0 })
if found.err or not moved[1] then return found end
for _, at in ipairs(moved) do
  if ARGV[at + 2] == '1' then
    found[2] = found[2] + note_business(KEYS[2], score_of(at), ARGV[at + 1], tonumber(ARGV[3]))
  end
end
found[2] = found[2] + trim(KEYS[2], now, tonumber(ARGV[1]), tonumber(ARGV[2]))
return found
