-- owner_of(key): the jid of the job that has the lock, nil when it is free. take_lock(key, jid, class, keep_ms, more): give it to a
--         job. write_lock(key, jid, class, keep_ms, since, more): the same, where the key does not exist and the time is known.
-- holder_of(key, jid): the jid of the job of which an equal job is a duplicate, nil for none. A job that will not run has none: from
--         the step that marks it as cancelled, or its batch, and from the moment of its expiry on, another job may take its lock.
--         Its own lock is that of `jid` in any case. The second result is the field `moved`.
-- key     HASH: v (format of the lock, 1), jid, class, since (seconds of Redis's clock), duplicates (how many came meanwhile),
--         wal:DATABASE (newest position of those); of `more`: bid (the batch of the job), expiry (epoch seconds, after which the job
--         does not begin); begun ('run', or 'period': until_expired) since the job began with the lock, until it waits again;
--         moved (decision 285): the guard of the page in which the job is on its way to another shard, or, without a jid, '' for a
--         minute, as pushes of the job go to another shard; any other value is no lock, and is overwritten
-- CRASH   as the step that it belongs to. The mark of a job is the release of its lock: one is never without the other. A process
--         that dies behind the mark leaves a lock that holds up no push. A job that begins nevertheless, because its process does not
--         know the mark yet, finds the lock of the other job and leaves it alone.
-- DEL first: it is allowed at maxmemory, and as a script's first write lets HSET pass.
local function owner_of(key)
  local jid = redis.pcall('HGET', key, 'jid')
  return type(jid) == 'string' and jid or nil
end

-- Another type of the key, or an ACL that refuses it, cancels nothing.
local function is_cancelled(id)
  return type(redis.pcall('ZSCORE', 'aw:cancelled', id)) == 'string'
end

local function holder_of(key, jid)
  local lock = redis.pcall('HMGET', key, 'jid', 'bid', 'expiry', 'begun', 'moved')
  local owner, bid, expiry, begun, moved = lock[1], lock[2], lock[3], lock[4], lock[5] or nil
  if not owner or owner == jid then return owner or nil, moved end
  -- The period counts from the start of the job, whatever becomes of it.
  if begun == 'period' then return owner, moved end
  if is_cancelled(owner) or (bid and is_cancelled(bid)) then return nil, moved end
  if not begun and tonumber(expiry or '') and tonumber(expiry) <= redis_now() then return nil, moved end
  return owner, moved
end

-- Write what decides whether the job will run; a field that `more` does not have stays.
local function note_terms(key, more)
  if more.bid and more.bid ~= '' then redis.call('HSET', key, 'bid', more.bid) end
  if more.expiry and more.expiry > 0 then redis.call('HSET', key, 'expiry', string.format('%.6f', more.expiry)) end
end

local function write_lock(key, jid, class, keep_ms, since, more)
  redis.call('HSET', key, 'v', '1', 'jid', jid, 'class', class, 'since', since)
  if more then note_terms(key, more) end
  redis.call('PEXPIRE', key, keep_ms)
end

local function take_lock(key, jid, class, keep_ms, more)
  redis.call('DEL', key)
  write_lock(key, jid, class, keep_ms, string.format('%.6f', redis_now()), more)
end

