-- read_lock_request(text): what a job says of the lock that it wants (wire/resources.py: Claim), nil for '' and nil.
-- due_of(claim): when a job for the schedule set is due, seconds of this server's clock: as it says, or so long after now; else nil.
-- rival(claim): the jid of another job that has the lock, nil when it is free or the job's own.
-- obtain(claim): it is the job's from now on, as long as it waits and its ttl; what is noted in one that it has stays.
-- drop_duplicate(claim): the job is not written, as its rival will do the work: that is noted in the lock, so that the rival's run
--         sees what the newest of them saw (positions) and knows that there were any; and counted. Returns the error of a full server.
-- marked(data, jid): a payload that is written all the same, with whose duplicate it is. It is an object, as we have written it.
-- CRASH   as the step that they belong to. Keys stand in the claim, as a shard is one server.
local function read_lock_request(text)
  if not text or text == '' then return nil end
  return cjson.decode(text)
end

local function server_time()
  local now = redis.call('TIME')
  return tonumber(now[1]) + tonumber(now[2]) / 1000000
end

local function due_of(claim)
  if claim.delay then return server_time() + tonumber(claim.delay) end
  return claim.due and tonumber(claim.due)
end

local function rival(claim)
  local jid = owner_of(claim.key)
  return jid ~= claim.jid and jid or nil
end

local function obtain(claim)
  local keep_ms = claim.ttl_ms
  local due = due_of(claim)
  if due then
    local wait_s = due - server_time()
    keep_ms = math.min(math.floor(keep_ms + math.max(0, wait_s) * 1000), 9007199254740991)
  end
  if owner_of(claim.key) == claim.jid then
    redis.call('PEXPIRE', claim.key, string.format('%.0f', keep_ms))
  else
    take_lock(claim.key, claim.jid, claim.class, string.format('%.0f', keep_ms))
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

