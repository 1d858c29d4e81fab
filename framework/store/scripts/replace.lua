-- Write members of a sorted set anew, each under the score that it has.
-- KEYS    1 sorted set
-- ARGV    1 number of members n  then n members as they were read  then n members to store
-- RETURN  a list per member: 1 replaced, 0 it is not there any more and nothing was written
-- COST    O(n log N)
-- CRASH   before: in the set as it was. after: in the set as it is to be. Whoever's ZREM finds the member moves it: pollers and
--         others may race.
local n = tonumber(ARGV[1])
local done = {}
-- Neither writes anything (an empty range, and a time that nothing is later than): a right that an ACL refuses ends the script here, before a member has left its place.
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
redis.call('ZADD', KEYS[1], 'XX', 'LT', '+inf', '')
for i = 1, n do
  local member = ARGV[1 + i]
  local score = redis.call('ZSCORE', KEYS[1], member)
  -- The first write is a removal: that one is allowed at maxmemory, and then so is the other.
  done[i] = redis.call('ZREM', KEYS[1], member)
  -- LT: where the same bytes are there already, the earlier of two times is kept.
  if done[i] == 1 then redis.call('ZADD', KEYS[1], 'LT', score, ARGV[1 + n + i]) end
end
return done
