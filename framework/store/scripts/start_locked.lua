-- A job is about to begin: its lock goes (until_executing) or is renewed (until_executed), unless it has to see more first.
-- KEYS    1 its lock
-- ARGV    1 its jid  2 its class  3 for how many milliseconds it keeps the lock, 0: it lets go
--         4 what dropped duplicates saw that it does not know of: '0' does not matter, '1' is to be looked at first, '2' at once
--         then the positions that it knows of: database, position, ...
-- RETURN  what they saw that is newer: database, position, ...; with '1' nothing was done then, and the caller asks again once
--         the job is sure to see it
-- COST    O(databases)
-- CRASH   before: the lock is as the push left it. after: gone, or as long as its ttl. The job stays where it is.
-- A lock that is another's is left alone; one that ran out is taken again where the job keeps one and nobody else has it. Only
-- duplicates that come from now on are a reason to run once more.
local owner, unseen = owner_of(KEYS[1]), {}
if owner and owner ~= ARGV[1] then return unseen end
if owner and ARGV[4] ~= '0' then
  local known = {}
  for i = 5, #ARGV, 2 do known[ARGV[i]] = ARGV[i + 1] end
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local database = string.match(fields[i], '^wal:(.*)$')
    if database and newer(fields[i + 1], known[database]) then
      unseen[#unseen + 1] = database
      unseen[#unseen + 1] = fields[i + 1]
    end
  end
  if #unseen > 0 and ARGV[4] == '1' then return unseen end
end
if ARGV[3] ~= '0' then
  if owner then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    redis.call('HDEL', KEYS[1], 'duplicates')
  else
    take_lock(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
  end
elseif owner then
  redis.call('DEL', KEYS[1])
end
return unseen
