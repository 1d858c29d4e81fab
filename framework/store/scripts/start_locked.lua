-- Release (until_executing) or renew (until_executed) the lock of a job that is about to start, unless it must see more first.
-- KEYS    1 its lock
-- ARGV    1 its jid  2 its class  3 for how many milliseconds it keeps the lock, 0: the lock is released
--         4 newer WAL positions of dropped duplicates: '0' ignore them, '1' return them first, '2' release nevertheless
--         then the positions that the job knows: database, position, ...
-- RETURN  newer positions of the duplicates: database, position, ...; with '1' nothing was written then, and the caller repeats the
--         call once a replica shows them
-- COST    O(databases)
-- CRASH   before: the lock is as the push left it. after: gone, or as long as its ttl. The job stays where it is.
-- Another job's lock is left alone. An expired lock is taken again if the job keeps one and no other job has it. Only duplicates
-- from now on cause another run.
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
