-- Append an entry to the audit log of operators' actions, also where the server is full.
-- KEYS    1 a key that does not exist  2 audit log (aw:audit)
-- ARGV    1 most entries  2 greatest age in seconds  3.. the fields and values of the entry
-- RETURN  the id of the entry
-- ERROR   the log is a key of another type: nothing is written
-- COST    O(1), and O(n) for n entries that are too old
-- CRASH   before: nothing. after: all of it.
-- UNLINK comes first, as in write.lua: at maxmemory it lets the others pass.
redis.call('UNLINK', KEYS[1])
local id = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, 3))
-- The id begins with the milliseconds of Redis's clock.
redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f', tonumber(string.match(id, '^%d+')) - ARGV[2] * 1000))
return id
