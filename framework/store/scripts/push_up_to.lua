-- Push jobs of a limited-capacity worker, as many as are missing; running and waiting jobs count.
-- KEYS    1 the limit (HASH; parts/slots.lua has the others)  2 set of queue names  3.. one queue per job
-- ARGV    1 how many there may be  2 seconds for which a job that waits has a slot reserved  3 number of jobs n
--         then n payloads  n jids  n queue names
-- RETURN  { jobs written, jobs still missing }
-- ERROR   the server is full (this is a push, and may be refused), or a key is of another type: nothing was written, or it is
--         among what is still missing
-- COST    O(n log N)
-- CRASH   before: nothing. after: in its queue, with its slot reserved until it begins, and the event of a recorded job in aw:task_events. Any number of callers: each is a step.
local base, n = KEYS[1], tonumber(ARGV[3])
local now = redis_now()
if redis.call('HGET', base, 'limit') ~= ARGV[1] then
  redis.call('HSET', base, 'limit', ARGV[1])
  redis.call('SADD', 'aw:limits', base)
end
-- Counted, not removed: a removal would let the pushes pass on a full server.
local taken = redis.pcall('ZCOUNT', base .. ':running', '(' .. string.format('%.6f', now), '+inf')
if type(taken) ~= 'number' then return taken end
local missing = math.max(0, limit_of(base, now) - taken)
local written = 0
for i = 1, n do
  local reservation = ' ' .. ARGV[3 + n + i]
  -- A job that an earlier call wrote, whose reply was lost, is not written again.
  if not redis.call('ZSCORE', base .. ':running', reservation) then
    if missing == 0 then break end
    local put = redis.pcall('LPUSH', KEYS[2 + i], ARGV[3 + i])
    if type(put) ~= 'number' then
      if written == 0 then return put end
      break
    end
    redis.pcall('SADD', KEYS[2], ARGV[3 + 2 * n + i])
    keep_event(ARGV[3 + i], ARGV[3 + 2 * n + i])
    take_slot(base, reservation, now + tonumber(ARGV[2]), '')
    missing = missing - 1
  end
  written = written + 1
end
return { written, missing }
