-- read_lock_request(text): decode a lock request (wire/resources.py: LockRequest), nil for '' and nil.
-- rival(claim): the jid of another job that owns the lock, nil when it is free or the job's own.
-- obtain(claim): give the lock to the job for its ttl; the notes of a lock that it already owns stay.
-- drop_duplicate(claim): count a duplicate that is not written, and note it in the lock with its WAL positions, so that the owner's
--         run sees the newest of them and knows that there were duplicates. Returns the error of a full server.
-- marked(data, jid): a payload that is written nevertheless, with the jid of the job whose duplicate it is. It is a JSON object.
-- CRASH   as the step that they belong to. The keys are in the claim, as a shard is one server.
local function read_lock_request(text)
  if not text or text == '' then return nil end
  return cjson.decode(text)
end

local function rival(claim)
  local jid = owner_of(claim.key)
  return jid ~= claim.jid and jid or nil
end

local function obtain(claim)
  local keep_ms = string.format('%.0f', claim.ttl_ms)
  if owner_of(claim.key) == claim.jid then
    redis.call('PEXPIRE', claim.key, keep_ms)
  else
    take_lock(claim.key, claim.jid, claim.class, keep_ms)
  end
end

local function drop_duplicate(claim)
  local came = tonumber(redis.call('HGET', claim.key, 'duplicates')) or 0
  local noted = redis.pcall('HSET', claim.key, 'duplicates', string.format('%.0f', came + 1))
  if type(noted) == 'table' then return noted end
  for database, position in pairs(claim.positions) do
    local field = 'wal:' .. database
    if newer(position, redis.call('HGET', claim.key, field)) then redis.call('HSET', claim.key, field, position) end
  end
  redis.pcall('HINCRBY', 'aw:counters', claim.counter, 1)
  return true
end

local function marked(data, jid)
  return string.sub(data, 1, -2) .. ',"duplicate-of":' .. cjson.encode(jid) .. '}'
end

