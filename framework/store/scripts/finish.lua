-- Acknowledge a job: remove it from the working list with its resources, and count it (parts/count.lua); or, when a duplicate was
-- dropped meanwhile, push its next run.
-- KEYS    1 working list; of a job that may run once more: 2 set of queue names  3 its queue  4 its lock
-- ARGV    1 payload as fetched  2 what it holds (parts/release.lua); of a job that may run once more:
--         3 its jid  4 the payload of the next run  5 its jid  6 class  7 queue name  8 for how many milliseconds it keeps the lock
--         9 its status key, '' for none  10 its state  11 how many seconds that is kept  12 when it is too old to begin, 0 for never
-- RETURN  1 gone, 2 gone, and the next run waits in its queue with the lock,
--         0 fenced: the process no longer owns the job, and nothing was written
-- COST    O(W)
-- CRASH   before: still in the working list, with its resources: it runs again. after: gone, and nothing is held but by the
--         next run. Called again after a lost reply, it finds no job and writes nothing.
if redis.call('LREM', KEYS[1], '-1', ARGV[1]) == 0 then return 0 end
count_processed(1)
local done = 1
if KEYS[4] and owner_of(KEYS[4]) == ARGV[3] and redis.call('HEXISTS', KEYS[4], 'duplicates') == 1 then
  if type(redis.pcall('LPUSH', KEYS[3], ARGV[4])) == 'number' then
    redis.pcall('SADD', KEYS[2], ARGV[7])
    -- The positions stay: the next run sees what the duplicates saw.
    redis.call('HSET', KEYS[4], 'jid', ARGV[5], 'class', ARGV[6])
    redis.call('HDEL', KEYS[4], 'duplicates', 'begun', 'bid', 'expiry')
    note_terms(KEYS[4], { expiry = tonumber(ARGV[12]) })
    redis.call('PEXPIRE', KEYS[4], ARGV[8])
    keep_event(ARGV[4], ARGV[7])
    if ARGV[9] ~= '' then redis.pcall('SET', ARGV[9], ARGV[10], 'EX', ARGV[11]) end
    done = 2
  end
end
release(ARGV[2])
return done
