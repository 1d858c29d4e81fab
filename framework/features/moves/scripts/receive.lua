-- Write a page of jobs of another shard to a queue or a sorted set here, once.
-- KEYS    1 guard of the page  2 queue or sorted set  3 set of queue names
-- ARGV    1 until when this may be done (seconds of Redis's clock)  2 how long the guard stays in milliseconds
--         3 queue name, '' for a sorted set
--         4 locks of the jobs: JSON [{key, jid, ms, fields}, ...], `fields` are names and values in turn; '' for none
--         5.. jobs, the oldest last; of a sorted set each as its score, a line feed, and its bytes
-- RETURN  1 written, 0 it had been written before, -1 the key is of another type and nothing was written, -2 too much time has passed
--         since the page was read on the other shard, and nothing was written
-- ERROR   the server is full: nothing was written
-- COST    O(n); of a sorted set O(n log N)
-- CRASH   before: on the other shard only. after: on both, and the guard is here: the next try answers 0, and the page is removed
--         there. One write has all jobs, and the guard follows in the same step.
if redis_now() > tonumber(ARGV[1]) then return -2 end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local queue = ARGV[3]
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= (queue ~= '' and 'list' or 'zset') then return -1 end
local words = {}
for i = #ARGV, 5, -1 do
  if queue ~= '' then
    words[#words + 1] = ARGV[i]
  else
    local at = string.find(ARGV[i], '\n', 1, true)
    words[#words + 1] = string.sub(ARGV[i], 1, at - 1)
    words[#words + 1] = string.sub(ARGV[i], at + 1)
  end
end
if queue ~= '' then
  redis.call('LPUSH', KEYS[2], unpack(words))
else
  -- LT: when the same bytes are already in the set, the earlier of the two times stays.
  redis.call('ZADD', KEYS[2], 'LT', unpack(words))
end
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
for _, lock in ipairs(ARGV[4] ~= '' and cjson.decode(ARGV[4]) or {}) do
  if not owner_of(lock.key) then
    redis.call('DEL', lock.key)
    redis.call('HSET', lock.key, unpack(lock.fields))
    redis.call('PEXPIRE', lock.key, lock.ms)
  end
end
if queue ~= '' then
  redis.pcall('SADD', KEYS[3], queue)
  arrive(queue)
end
return 1
