-- owner_of(key): the jid of the job that owns the lock, nil when it is free. take_lock(key, jid, class, keep_ms): give it to a job.
-- write_lock(key, jid, class, keep_ms, since): the same, where the key does not exist and the time of the server's clock is known.
-- key     HASH: v (format of the lock, 1), jid, class, since (seconds of Redis's clock), duplicates (how many came meanwhile),
--         wal:DATABASE (newest position of those); any other value is no lock, and is overwritten
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

