-- start_lock(key, jid, class, keep_ms, unseen, known, is_period): release or renew the lock of a job that is about to start, unless it must see
--         newer WAL positions of duplicates first; start_locked.lua names the arguments. `known` is database -> position.
--         Returns the newer positions: { database, position, ... }
-- CRASH   as the step that it belongs to. The job stays where it is.
-- Another job's lock is left alone. An expired lock is taken again if the job keeps one and no other job has it. Only duplicates
-- from now on cause another run.
local function unseen_positions(key, known)
  local unseen, fields = {}, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local database = string.match(fields[i], '^wal:(.*)$')
    if database and newer(fields[i + 1], known[database]) then
      unseen[#unseen + 1] = database
      unseen[#unseen + 1] = fields[i + 1]
    end
  end
  return unseen
end

local function start_lock(key, jid, class, keep_ms, unseen, known, is_period)
  local owner = owner_of(key)
  if owner and owner ~= jid then return {} end
  local found = owner and unseen ~= '0' and unseen_positions(key, known) or {}
  if #found > 0 and unseen == '1' then return found end
  if keep_ms ~= '0' then
    if owner then
      redis.call('PEXPIRE', key, keep_ms)
      redis.call('HDEL', key, 'duplicates', 'moved')
    else
      take_lock(key, jid, class, keep_ms)
    end
    redis.call('HSET', key, 'begun', is_period and 'period' or 'run')
  elseif owner then
    redis.call('DEL', key)
  end
  return found
end

