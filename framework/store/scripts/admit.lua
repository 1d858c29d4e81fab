-- Push jobs of a class that is deduplicated: each takes its lock in the step that writes it, or is dropped as a duplicate.
-- KEYS    1 set of queue names  2 the queue, or the schedule set
-- ARGV    1 number of jobs n  2 queue name, '' for the schedule set
--         then n payloads  then n claims (parts/claim.lua); of a job for the schedule set with when it is due
-- RETURN  per job: '' it is in, with its lock; else the jid of the job whose duplicate it is: it is nowhere, or, where its claim
--         does not drop, in, and says so
-- ERROR   the server is full (this is a push, and may be refused), or the destination's key is of another type: nothing was written
-- COST    O(n), O(n log N) into the schedule set
-- CRASH   before: neither job nor lock. after: both. Who has the lock already is in by an earlier try whose reply was lost, and is
--         not written again.
-- The first write is one that a full server refuses, and the lock comes last: what is refused leaves none, as Lua does not roll
-- back.
local n, queue, found = tonumber(ARGV[1]), ARGV[2], {}
for i = 1, n do
  local data, claim = ARGV[2 + i], read_claim(ARGV[2 + n + i])
  local owner = owner_of(claim.key)
  local done
  found[i] = ''
  if owner == claim.jid then
    done = true
  elseif owner and claim.drops then
    found[i] = owner
    done = drop_duplicate(claim)
  else
    if owner then
      found[i] = owner
      data = marked(data, owner)
    end
    if queue == '' then
      done = redis.pcall('ZADD', KEYS[2], claim.due, data)
    else
      done = redis.pcall('SADD', KEYS[1], queue)
      if type(done) == 'number' then done = redis.pcall('LPUSH', KEYS[2], data) end
    end
    if type(done) == 'number' then
      if not owner then obtain(claim) end
      if claim.mark then redis.pcall(unpack(claim.mark)) end
    end
  end
  if type(done) == 'table' then return done end
end
return found
