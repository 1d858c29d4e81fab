-- trim(set, now, most, stay_s): remove the entries older than stay_s, and the oldest beyond `most` - 1 (Sidekiq's two limits), each
--         at most a bounded number: the next call goes on. Returns the number removed.
-- note_business(set, at, data, most): note that `data`, just added with the score `at`, is a business failure; at most `most` of these stay.
--         Returns the number removed.
-- In a full dead set business failures are removed first, the oldest before the others: none displaces another dead job.
-- aw:dead:business    ZSET, SHA-1 of an entry of the dead set -> its score there. Sidekiq's pages remove entries without
--         their digest: such a digest stays and removes no entry. Once there are more digests than allowed entries, ten random
--         ones are checked, and those without an entry are removed.
-- COST    O(log N) for each that leaves: after an outage, or with lower settings, a million may have to
-- CRASH   as the step that they belong to: an entry and its digest are written, and leave, in one step.
local BUSINESS = 'aw:dead:business'
-- Per step: business failures, of which each takes several commands, and entries, which one command removes.
local MOST_AT_ONCE, MOST_IN_A_ROW = 100, 1000

local function entry_of(set, digest, score)
  local found = redis.call('ZRANGEBYSCORE', set, score, score)
  for _, entry in ipairs(found) do
    if redis.sha1hex(entry) == digest then return entry end
  end
  return nil
end

-- Return nil without a digest, else the number of removed entries: the entry of the digest may be gone.
local function remove_oldest_business(set)
  local oldest = redis.pcall('ZPOPMIN', BUSINESS)
  if not oldest[1] then return nil end
  local entry = entry_of(set, oldest[1], oldest[2])
  return entry and redis.call('ZREM', set, entry) or 0
end

local function note_business(set, at, data, most)
  local noted = redis.pcall('ZADD', BUSINESS, at, redis.sha1hex(data))
  if type(noted) == 'table' or redis.call('ZCARD', BUSINESS) <= most then return 0 end
  local drawn = redis.call('ZRANDMEMBER', BUSINESS, 10, 'WITHSCORES')
  for i = 1, #drawn, 2 do
    if not entry_of(set, drawn[i], drawn[i + 1]) then redis.call('ZREM', BUSINESS, drawn[i]) end
  end
  local gone = 0
  for _ = 1, MOST_AT_ONCE do
    if redis.call('ZCARD', BUSINESS) <= most then break end
    gone = gone + remove_oldest_business(set)
  end
  return gone
end

local function remove_first(set, count)
  if count <= 0 then return 0 end
  return redis.call('ZREMRANGEBYRANK', set, 0, math.min(count, MOST_IN_A_ROW) - 1)
end

local function trim(set, now, most, stay_s)
  local too_old, count = string.format('%.0f', now - stay_s), redis.call('ZCARD', set)
  local gone = remove_first(set, redis.call('ZCOUNT', set, '-inf', too_old))
  if set == 'dead' then
    if gone > 0 then
      local digests = redis.pcall('ZCOUNT', BUSINESS, '-inf', too_old)
      if type(digests) == 'number' then remove_first(BUSINESS, digests) end
    end
    for _ = 1, count < most and 0 or MOST_AT_ONCE do
      local removed = redis.call('ZCARD', set) >= most and remove_oldest_business(set)
      if not removed then break end
      gone = gone + removed
    end
  end
  return gone + (count < most and 0 or remove_first(set, redis.call('ZCARD', set) - most + 1))
end

