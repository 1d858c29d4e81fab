-- Acknowledge jobs with a lock of which no duplicate was dropped, and release what they hold. The others stay where they are: each runs
-- once more, and is acknowledged alone (finish.lua).
-- KEYS    1 working list
-- ARGV    per job, 100 at most: payload as fetched, what it holds (parts/release.lua), its lock, its jid
-- RETURN  { position of a job (from 1), 0 fenced: the process no longer owns it, and nothing was written for it;
--           position, 1 it stays: a duplicate was dropped; -position, error of what a job did not release; ... }: mostly nothing
-- COST    O(n * W)
-- CRASH   before: in the working list, with its lock: it runs again. after: gone, and nothing is held. A duplicate that comes before is
--         noted in the lock, and its job stays; one that comes after finds no lock, and waits in the queue. Called again after a lost
--         reply, it finds none of the jobs that it has acknowledged.
local found, done = {}, 0
local function note(position, word)
  found[#found + 1] = position
  found[#found + 1] = word
end

for at = 1, #ARGV, 4 do
  local position = (at + 3) / 4
  local lock = redis.pcall('HMGET', ARGV[at + 2], 'jid', 'duplicates')
  if lock[2] and lock[1] == ARGV[at + 3] then
    note(position, 1)
  elseif redis.call('LREM', KEYS[1], '-1', ARGV[at]) == 0 then
    note(position, 0)
  else
    done = done + 1
    -- An ACL may refuse it, and Lua does not roll back: the jobs behind it still release what they hold.
    local failed = late().try_release(ARGV[at + 1])
    if failed then note(-position, failed) end
  end
end
if done > 0 then count_processed(done) end
return found
