-- Replace members of a sorted set, each with the same score.
-- KEYS    1 sorted set
-- ARGV    1 number of members n  then n members as they were read  then n members to store
-- RETURN  a list per member: 1 replaced, 0 it is no longer there, and nothing was written
-- COST    O(n log N)
-- CRASH   before: the old member. after: the new one. The ZREM that finds the member moves it: pollers may race.
local n = tonumber(ARGV[1])
local done = {}
-- Both write nothing (an empty range, and a score that none exceeds): without the right to one of them the script ends here, before
-- a member has left its place.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
redis.call('ZADD', KEYS[1], 'XX', 'LT', '+inf', '')
for i = 1, n do
  local member = ARGV[1 + i]
  local score = redis.call('ZSCORE', KEYS[1], member)
  -- The first write is a removal: that one is allowed at maxmemory, and then so is the other.
  done[i] = redis.call('ZREM', KEYS[1], member)
  -- LT: when the same bytes are already in the set, the earlier of the two times stays.
  if done[i] == 1 then redis.call('ZADD', KEYS[1], 'LT', score, ARGV[1 + n + i]) end
end
return done
