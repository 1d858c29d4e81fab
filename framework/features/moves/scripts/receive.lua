-- Write a page of jobs of another shard to a queue or a sorted set here, once.
-- KEYS    1 guard of the page  2 queue or sorted set  3 set of queue names
-- ARGV    1 until when this may be done (seconds of Redis's clock)  2 how long the guard stays in milliseconds
--         3 queue name, '' for a sorted set
--         4 what the jobs had there, '' for nothing; JSON {
--           locks: [{key, jid, ms, fields, merge}, ...], `fields` are names and values in turn; `merge` of a job that another one with
--             the lock here stands for: {at: its place among the jobs, counter, positions, mark: command for its state};
--           hashes: [[key, ms, first, last], ...], fields and values in turn; strings: [[key, ms, place], ...]: places among the values, ms 0
--           for no end;  cancelled: [[score, jid], ...];  told: [messages to waiters by name (parts/release.lua), ...] }
--         5 number n of values  then n values
--         then the jobs, the oldest last; of a sorted set each as its score, a line feed, and its bytes
-- RETURN  {1, place of a job and jid of the one that stands for it, ...} written but for these; 0 it had been written before, -1 the key is of another type and nothing was written, -2 too much time has passed
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
local had = ARGV[4] ~= '' and cjson.decode(ARGV[4])
local merged, done = {}, { 1 }
for _, lock in ipairs(had and had.locks or {}) do
  local owner = lock.merge and holder_of(lock.key, lock.jid)
  if owner and owner ~= lock.jid then
    merged[lock.merge.at] = owner
    done[#done + 1] = lock.merge.at
    done[#done + 1] = owner
  end
end
local words, values = {}, tonumber(ARGV[5])
for i = #ARGV, 6 + values, -1 do
  if merged[i - 5 - values] then
    -- Decision 285: as if it had been pushed here.
  elseif queue ~= '' then
    words[#words + 1] = ARGV[i]
  else
    local at = string.find(ARGV[i], '\n', 1, true)
    words[#words + 1] = string.sub(ARGV[i], 1, at - 1)
    words[#words + 1] = string.sub(ARGV[i], at + 1)
  end
end
if not words[1] then
  -- Another job stands for each.
elseif queue ~= '' then
  redis.call('LPUSH', KEYS[2], unpack(words))
else
  -- LT: when the same bytes are already in the set, the earlier of the two times stays.
  redis.call('ZADD', KEYS[2], 'LT', unpack(words))
end
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
if had then
  local function ends(key, ms)
    if ms > 0 then redis.pcall('PEXPIRE', key, ms) end
  end
  for _, lock in ipairs(had.locks) do
    if not owner_of(lock.key) then
      redis.call('DEL', lock.key)
      redis.call('HSET', lock.key, unpack(lock.fields))
      redis.call('PEXPIRE', lock.key, lock.ms)
    end
  end
  -- A key of another type is left alone. A cancellation may be here already, in the HASH too.
  for _, hash in ipairs(had.hashes) do
    redis.pcall('HSET', hash[1], unpack(ARGV, 5 + hash[3], 5 + hash[4]))
    ends(hash[1], hash[2])
  end
  for _, text in ipairs(had.strings) do
    redis.pcall('SET', text[1], ARGV[5 + text[3]])
    ends(text[1], text[2])
  end
  for _, mark in ipairs(had.cancelled) do redis.pcall('ZADD', 'aw:cancelled', mark[1], mark[2]) end
  for _, told in ipairs(had.told) do late().tell_waiters(told) end
  for _, lock in ipairs(had.locks) do
    local claim = lock.merge
    if claim and merged[claim.at] then
      late().drop_duplicate({ key = lock.key, positions = claim.positions, counter = claim.counter })
      if claim.mark then redis.pcall(unpack(claim.mark)) end
    end
  end
end
if queue ~= '' and words[1] then
  redis.pcall('SADD', KEYS[3], queue)
  arrive(queue)
end
return done
