-- Note that a chunk of a bulk push is in the schedule set: the last command of the transaction that writes it.
-- KEYS    1 the key that notes it  2 the set to which the transaction has written
-- ARGV    1 for how many milliseconds it is noted
-- RETURN  1 noted, 0 not: the set's key is of another type, and the chunk is not written
-- COST    O(1)
-- CRASH   as the transaction: the jobs and this note, or neither.
if redis.call('TYPE', KEYS[2]).ok ~= 'zset' then return 0 end
redis.call('SET', KEYS[1], '[]', 'PX', ARGV[1])
return 1
