-- Move due jobs out of a sorted set, each to its next place.
-- KEYS    1 sorted set  2 set of queue names  3 dead set  4.. per job its queue (any declared key where it goes to none)
-- ARGV    1 number of jobs n  2 most dead entries  3 longest stay in the dead set in seconds  4 seconds of postponement
--         then n members, n words, n payloads to store, n queue names
--         then, when any of them has to do with a lock, n times its claim (parts/lock_request.lua) where it goes to its queue, what it
--         holds (parts/release.lua) where it ends, '' otherwise. The words:
--           queue   to the left end of its queue; or nowhere, a duplicate of a job that has the lock
--           dead    into the dead set, which is trimmed
--           mark    stays, due as before, as the other payload (the first step of a way to another shard)
--           delay   stays, due again later: after the seconds that stand for its payload, else after those of ARGV 4
--           remove  nowhere: a client middleware dropped it, or it is on its new shard
-- RETURN  a list per job: 1 done, 0 another process was first, -1 the destination's key is of another type, so it is postponed,
--         the jid of the job whose duplicate it was: it is nowhere, or, where its claim does not drop, in its queue and says so;
--         then the number trimmed
-- COST    O(n log N + trimmed)
-- CRASH   before: in the set. after: at its place, and its lock with it. The ZREM that finds the member moves it: pollers may race.
local n, seconds = tonumber(ARGV[1]), redis_now()
local later = string.format('%.6f', seconds + tonumber(ARGV[4]))
local done, buried, trimmed = {}, false, 0
-- Both write nothing (an empty range, and a score that none exceeds): without the right to one of them the script ends here, before
-- a job has left its place. The removal comes first, as always (maxmemory).
redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
redis.call('ZADD', KEYS[1], 'XX', 'LT', '+inf', '')
for i = 1, n do
  local member, word, data = ARGV[4 + i], ARGV[4 + n + i], ARGV[4 + 2 * n + i]
  local score = word == 'mark' and redis.call('ZSCORE', KEYS[1], member)
  -- The first write is a removal: that one is allowed at maxmemory, and then so are the others.
  done[i] = redis.call('ZREM', KEYS[1], member)
  if done[i] == 1 then
    local put
    local lock = ARGV[4 + 4 * n + i]
    local claim = word == 'queue' and read_lock_request(lock)
    local owner = claim and rival(claim)
    if owner and claim.drops then
      drop_duplicate(claim)
      if claim.mark then redis.pcall(unpack(claim.mark)) end
      tell_waiters(claim)
    elseif word == 'queue' then
      put = redis.pcall('LPUSH', KEYS[3 + i], owner and marked(data, owner) or data)
      redis.pcall('SADD', KEYS[2], ARGV[4 + 3 * n + i])
      if string.find(ARGV[4 + 3 * n + i], '~', 1, true) and type(put) == 'number' then arrive(ARGV[4 + 3 * n + i]) end
    elseif word == 'dead' then
      put = redis.pcall('ZADD', KEYS[3], string.format('%.6f', seconds), data)
    elseif word == 'mark' then
      redis.call('ZADD', KEYS[1], score, data)
    elseif word == 'delay' then
      local wait = tonumber(data)
      redis.call('ZADD', KEYS[1], wait and string.format('%.6f', seconds + wait) or later, member)
    end
    if type(put) == 'table' and put.err then
      redis.call('ZADD', KEYS[1], later, member)
      done[i] = -1
    elseif owner then
      done[i] = owner
    elseif claim then
      obtain(claim)
    elseif word == 'dead' or word == 'remove' then
      buried = buried or word == 'dead'
      release(lock)
    end
  end
end
if buried then trimmed = trim(KEYS[3], seconds, tonumber(ARGV[2]), tonumber(ARGV[3])) end
return {done, trimmed}
