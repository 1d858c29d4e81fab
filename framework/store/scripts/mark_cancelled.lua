-- Mark jobs as cancelled: each process ends them before their start, and asks those that it runs to end. Sidekiq's mark is written
-- too (`it-JID`, field `cancelled`), for an iterating job that a Ruby process runs.
-- KEYS    1 marks (ZSET)  2.. per job its status key
-- ARGV    1 how many seconds a mark is kept  2.. jids
-- RETURN  per job: 1 marked, 0 its status says that it has ended, and it is not marked
-- COST    O(n log N), and as much for at most 1,000 old marks
-- CRASH   nothing moves. Called again, it marks the same jobs: the score is the time of the last mark.
-- A batch keeps its mark for as long as it exists: a job of it may be due later. features/batches/scripts/change.lua lets the key live that long.
local now, keep_s = redis_now(), math.max(tonumber(ARGV[1]), redis.call('TTL', KEYS[1]))
-- EXPIRE first, which is allowed at maxmemory.
redis.call('EXPIRE', KEYS[1], keep_s)
local ended = { completed = true, failed = true, discarded = true, expired = true, cancelled = true }
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now - tonumber(ARGV[1])), 'LIMIT', 0, 1000)) do
  if string.sub(id, 1, 3) ~= 'aw-' or redis.call('EXISTS', 'aw:batch:' .. id) == 0 then redis.call('ZREM', KEYS[1], id) end
end
-- One command for all: a call from Lua costs as much as the command. A key of another type reads as a missing one.
local states = redis.pcall('MGET', unpack(KEYS, 2))
local at, second = string.format('%.6f', now), string.format('%.0f', now)
local marked, scores, marks = {}, {}, {}
for i = 2, #ARGV do
  local state = states[i - 1]
  marked[i - 1] = state and ended[state] and 0 or 1
  if marked[i - 1] == 1 then
    scores[#scores + 1], scores[#scores + 2] = at, ARGV[i]
    marks[#marks + 1] = 'it-' .. ARGV[i]
  end
end
if #marks > 0 then
  -- Mostly no Ruby process iterates one of these jobs: then one command writes both fields.
  local are_new = redis.pcall('EXISTS', unpack(marks)) == 0
  for _, mark in ipairs(marks) do
    -- An ACL may refuse it; without a cursor Sidekiq 8.1's pages answer 500.
    if are_new then
      redis.pcall('HSET', mark, 'cancelled', second, 'c', 'null')
    else
      redis.pcall('HSETNX', mark, 'cancelled', second)
      redis.pcall('HSETNX', mark, 'c', 'null')
    end
    redis.pcall('EXPIRE', mark, ARGV[1])
  end
  redis.call('ZADD', KEYS[1], unpack(scores))
end
redis.call('EXPIRE', KEYS[1], keep_s)
return marked
