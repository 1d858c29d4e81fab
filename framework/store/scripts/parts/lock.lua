-- owner_of(key): the jid of the job that owns the lock, nil when it is free. take_lock(key, jid, class, keep_ms): give it to a job.
-- write_lock(key, jid, class, keep_ms, since): the same, where the key does not exist and the time of the server's clock is known.
-- key     HASH: v (format of the lock, 1), jid, class, since (seconds of Redis's clock), duplicates (how many came meanwhile),
--         wal:DATABASE (newest position of those); any other value is no lock, and is overwritten
-- lock_for_ticket(holds), wake_lock(entry): the ticket of a held job names its lock, which lasts as long as the job is held
--         (JobResources.on_hold); when the job is released, the lock lasts as usual again.
-- CRASH   as the step that it belongs to.
-- DEL first: it is allowed at maxmemory, and as a script's first write lets HSET pass.
local function owner_of(key)
  local jid = redis.pcall('HGET', key, 'jid')
  return type(jid) == 'string' and jid or nil
end

local function write_lock(key, jid, class, keep_ms, since)
  redis.call('HSET', key, 'v', '1', 'jid', jid, 'class', class, 'since', since)
  redis.call('PEXPIRE', key, keep_ms)
end

local function take_lock(key, jid, class, keep_ms)
  local time = redis.call('TIME')
  redis.call('DEL', key)
  write_lock(key, jid, class, keep_ms, string.format('%d.%06d', time[1], time[2]))
end

local function lock_for_ticket(holds)
  local lock = holds and holds.lock
  return lock and { lock.key, lock.owner, lock.after_ms }
end

local function wake_lock(entry)
  local last_ms = type(entry) == 'table' and tonumber(entry[3])
  if last_ms and owner_of(tostring(entry[1])) == entry[2] then
    redis.pcall('PEXPIRE', entry[1], string.format('%.0f', last_ms))
  end
end

