-- Interrupt a job that still runs when its process must end: push it back to its queue, to run next, or, after too many
-- interruptions, to the set of interrupted jobs, which is trimmed.
-- KEYS    1 working list  2 its queue, or the sub-queue of its level  3 set of queue names  4 interrupted set, after too many interruptions
-- ARGV    1 payload as fetched  2 payload to store  3 queue name  4 what it holds, when it goes back (parts/release.lua)
--         with 4 keys: 5 what it holds, when it ends  6 the set's most entries  7 their longest stay in seconds
--         8 its status key, '' for none  9 its state  10 how many seconds that is kept
-- RETURN  0 fenced: the process no longer owns the job, and nothing was written, -1 its queue's key is of another type: the job stays,
--         1 it is in its queue, 2 + entries trimmed from the set: it is there
--         When the set's key is of another type, the job goes back to its queue.
-- COST    O(W + log N + trimmed)
-- CRASH   before: in the working list. after: at its place, without resources that it may not hold there. Called again after a lost
--         reply, it finds no job and writes nothing.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
if KEYS[4] then
  local now = redis_now()
  if type(redis.pcall('ZADD', KEYS[4], string.format('%.6f', now), ARGV[2])) == 'number' then
    -- In the same step: no process handles a job that was given up again, so its state would stay `running` forever.
    if ARGV[8] ~= '' then redis.pcall('SET', ARGV[8], ARGV[9], 'EX', ARGV[10]) end
    release(ARGV[5])
    return 2 + trim(KEYS[4], now, tonumber(ARGV[6]), tonumber(ARGV[7]))
  end
end
if type(redis.pcall('RPUSH', KEYS[2], ARGV[2])) ~= 'number' then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  return -1
end
redis.pcall('SADD', KEYS[3], ARGV[3])
arrive(ARGV[3])
release(ARGV[4])
return 1
