-- Put the jobs of a block (wire/blocks.py) in its place in a set of held jobs. A block that cannot be read moves to the dead set.
-- KEYS    1 the set  2 jobs beyond the members of sets (HASH)  3 dead set  4 counters (HASH)  5 a key that does not exist
-- ARGV    1 the block  2 number of its jobs  3 entry of the dead set, '' for a block that can be read  4 series in which that is counted
--         then per job its score, its member
-- RETURN  1 done, 0 the block is not in the set: another process has unpacked it
-- COST    O(jobs * log N)
-- CRASH   before: the jobs are in the block. after: they are in the set, and the block is gone. The ZSCORE that finds the block decides:
--         any number of processes may do this at once.
-- A count that cannot be written stops nothing. At maxmemory Redis refuses no write of a script that has removed something.
local set, entry, at = KEYS[1], ARGV[3], 5
if not redis.call('ZSCORE', set, ARGV[1]) then return 0 end

-- Return the member of a paused job with another number of its copy: one of the very same bytes was held meanwhile.
local function another_copy(member)
  local line = string.find(member, '\n', 1, true) or 0
  local read, ticket = pcall(cjson.decode, string.sub(member, 1, line - 1))
  if not read or type(ticket) ~= 'table' or type(ticket[2]) == 'string' then return member end
  local copy = tonumber(ticket[2]) or 1
  repeat
    copy = copy + 1
    member = cjson.encode({ ticket[1], copy, ticket[3] }) .. string.sub(member, line)
  until not redis.call('ZSCORE', set, member)
  return member
end

redis.call('DEL', KEYS[5])
local beyond = redis.pcall('HINCRBY', KEYS[2], set, 1 - tonumber(ARGV[2]))
if type(beyond) == 'number' and beyond <= 0 then redis.pcall('HDEL', KEYS[2], set) end
if entry ~= '' then
  redis.call('ZADD', KEYS[3], string.format('%.0f', redis_now()), entry)
  redis.pcall('HINCRBY', KEYS[4], ARGV[4], 1)
elseif ARGV[at] then
  local members = {}
  for i = at + 1, #ARGV, 2 do members[#members + 1] = ARGV[i] end
  for i, score in ipairs(redis.call('ZMSCORE', set, unpack(members))) do
    if score then members[i] = another_copy(members[i]) end
  end
  for i = 1, #members do ARGV[at + 2 * i - 1] = members[i] end
  redis.call('ZADD', set, unpack(ARGV, at))
end
redis.call('ZREM', set, ARGV[1])
return 1
