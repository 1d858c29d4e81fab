-- Read many hashes. Reads only.
-- KEYS    hashes
-- ARGV    the fields to read; none: all of them
-- RETURN  for each hash { field, value, ... }, with ARGV the values of its fields; {} for a key of another type
-- COST    O(fields)
-- CRASH   nothing moves.
local found = {}
for i, key in ipairs(KEYS) do
  local reply
  if #ARGV > 0 then reply = redis.pcall('HMGET', key, unpack(ARGV)) else reply = redis.pcall('HGETALL', key) end
  found[i] = reply_or(reply, {})
end
return found
