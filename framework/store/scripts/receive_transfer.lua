-- Write jobs of another shard to their queues here, each once; or make sure that a job is not written any more (decision 287).
-- KEYS    1 set of queue names  then per job: its guard, its queue
-- ARGV    1 number of jobs n  2 how long a guard stays in milliseconds  3 until when this may be done (seconds of Redis's clock)
--         then n payloads, '' for a job that stays on its shard  then n queue names  then, when any of them wants a lock, n claims (parts/lock_request.lua), '' for none
-- RETURN  per job: 1 written, 0 it had been written before, -1 the queue's key is no list and nothing was written,
--         -2 it is not written, now or later: its old shard has it, and needs another token for another transfer;
--         the jid of the job whose duplicate it is: it is nowhere here, or, where its claim does not drop, written and says so;
--         {} too much time has passed since the old shard was read, and nothing was written
-- ERROR   the server is full (this is a push, and may be refused): the jobs are still on their old shard. A call with jobs that
--         stay is not refused: its first write is a DEL.
-- COST    O(n)
-- CRASH   before: on the old shard only. after: on both, and the guard is here: the next try to write it answers 0, and the
--         job is removed there. The guard is written in the step that writes the job: one is never without the other. Behind the
--         guard of a job that stays, no late transfer writes it; its old shard then removes the mark, or asks again.
local n, done = tonumber(ARGV[1]), {}
if redis_now() > tonumber(ARGV[3]) then return done end
for i = 1, n do
  local guard, queue = KEYS[2 * i], KEYS[2 * i + 1]
  -- A key of another type is a guard as well.
  local found = redis.pcall('GET', guard)
  done[i] = found == 'stays' and -2 or 0
  if not found and ARGV[3 + i] == '' then
    redis.call('DEL', guard)
    redis.call('SET', guard, 'stays', 'PX', ARGV[2])
    done[i] = -2
  elseif not found then
    local claim = read_lock_request(ARGV[3 + 2 * n + i])
    local owner = claim and rival(claim)
    if owner and claim.drops then
      local noted = drop_duplicate(claim)
      if type(noted) == 'table' then return noted end
      redis.call('SET', guard, '1', 'PX', ARGV[2])
      if claim.mark then redis.pcall(unpack(claim.mark)) end
      done[i] = owner
    else
      local put = redis.pcall('LPUSH', queue, owner and marked(ARGV[3 + i], owner) or ARGV[3 + i])
      if type(put) == 'table' and put.err then
        if not string.find(put.err, 'WRONGTYPE', 1, true) then return put end
        done[i] = -1
      else
        redis.call('SET', guard, '1', 'PX', ARGV[2])
        redis.pcall('SADD', KEYS[1], ARGV[3 + n + i])
        arrive(ARGV[3 + n + i])
        if claim and not owner then obtain(claim) end
        done[i] = owner or 1
      end
    end
  end
end
return done
