-- Take a job of ours out of the working list for good, with what it holds.
-- KEYS    1 working list
-- ARGV    1 payload as fetched  2 what it holds (parts/let_go.lua)
-- RETURN  1 gone, 0 fenced: the job is not ours any more and nothing was written
-- COST    O(W)
-- CRASH   before: still in the working list, and holding all it held: it runs again. after: gone, and nothing is held.
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
let_go(ARGV[2])
return 1
