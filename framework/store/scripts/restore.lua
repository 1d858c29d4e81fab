-- Put back jobs of a queue that a dead migration has set aside: the oldest to the left end of the queue, where it stopped.
-- KEYS    1 lease of the migration  2 its working list  3 the queue  4 set of queue names
-- ARGV    1 until when it counts as dead (seconds of Redis's clock)  2 most jobs  3 most bytes (one job always goes)  4 queue name
-- RETURN  number put back; 0 when the queue's key is no list; -1 the migration is alive, or too much time has passed since it was
--         inspected
-- COST    O(jobs)
-- CRASH   before: in the working list. after: in the queue. Any number of reapers may run at once.
-- The lease is checked in the step that moves the jobs. RPOP first, which is allowed at maxmemory.
local now = redis_now()
if redis.call('EXISTS', KEYS[1]) == 1 or now > tonumber(ARGV[1]) then return -1 end
local size, moved = 0, 0
while moved < tonumber(ARGV[2]) and size < tonumber(ARGV[3]) do
  local payload = redis.call('RPOP', KEYS[2])
  if not payload then break end
  local pushed = redis.pcall('LPUSH', KEYS[3], payload)
  if type(pushed) == 'table' then
    redis.call('RPUSH', KEYS[2], payload)
    break
  end
  moved = moved + 1
  size = size + #payload
end
if moved > 0 then
  redis.pcall('SADD', KEYS[4], ARGV[4])
  -- A sub-queue that was empty meanwhile has lost its turn.
  arrive(ARGV[4])
end
return moved
