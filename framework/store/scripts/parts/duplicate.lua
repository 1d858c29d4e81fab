-- drop_duplicate(claim): count a duplicate that is not written, and note it in the lock with its WAL positions, so that the owner's
--         run sees the newest of them and knows that there were duplicates. Returns the error of a full server. The lock of an owner
--         on another shard is not here: only the count is noted then. Without a counter only the lock is.
-- marked(data, jid): a payload that is written nevertheless, with the jid of the job whose duplicate it is. It is a JSON object.
-- CRASH   as the step that they belong to. The keys are in the claim, as a shard is one server.
local function drop_duplicate(claim)
  if redis.call('EXISTS', claim.key) == 0 then return redis.pcall('HINCRBY', 'aw:counters', claim.counter, 1) end
  local came = tonumber(redis.call('HGET', claim.key, 'duplicates')) or 0
  local noted = redis.pcall('HSET', claim.key, 'duplicates', string.format('%.0f', came + 1))
  if type(noted) == 'table' then return noted end
  for database, position in pairs(claim.positions) do
    local field = 'wal:' .. database
    if newer(position, redis.call('HGET', claim.key, field)) then redis.call('HSET', claim.key, field, position) end
  end
  if claim.counter then redis.pcall('HINCRBY', 'aw:counters', claim.counter, 1) end
  return true
end

local function marked(data, jid)
  return string.sub(data, 1, -2) .. ',"duplicate-of":' .. cjson.encode(jid) .. '}'
end

