-- Write what operators order, and the record of a process, also where the server is full: in one step.
-- KEYS    1 a key that does not exist  2.. the key of each command
-- ARGV    per command: its name (SADD, HSET, HDEL or LPUSH), the number of its further arguments, then these
-- RETURN  the replies of the commands
-- ERROR   a key is of another type: the commands before it have been carried out
-- COST    O(n), n arguments
-- CRASH   before: nothing. after: all of it.
-- UNLINK comes first, although it removes nothing: it is allowed at maxmemory and, as the script's first write, lets the others
-- pass too. A full server must not refuse the pause that would let it recover.
redis.call('UNLINK', KEYS[1])
local replies, at = {}, 1
for i = 2, #KEYS do
  local name, key, last = ARGV[at], KEYS[i], at + 1 + tonumber(ARGV[at + 1])
  if name == 'SADD' then
    replies[i - 1] = redis.call('SADD', key, unpack(ARGV, at + 2, last))
  elseif name == 'HSET' then
    replies[i - 1] = redis.call('HSET', key, unpack(ARGV, at + 2, last))
  elseif name == 'HDEL' then
    replies[i - 1] = redis.call('HDEL', key, unpack(ARGV, at + 2, last))
  else
    replies[i - 1] = redis.call('LPUSH', key, unpack(ARGV, at + 2, last))
  end
  at = last + 1
end
return replies
