-- Push jobs of a deduplicated class: each takes its lock in the step that writes it, or is dropped as a duplicate.
-- KEYS    1 set of queue names  2 the queue, or the schedule set
-- ARGV    1 number of jobs n  2 queue name, '' for the schedule set  3 key that notes that this step was done, '' for none
--         4 for how many milliseconds
--         then n payloads  then n claims (parts/lock_request.lua); of a job for the schedule set with when it is due
-- RETURN  per job: '' it is in, with its lock; else the jid of the job whose duplicate it is: it is nowhere, or, where its claim
--         does not drop, in, and says so. Behind them the error of `queues`, where the queue's name could not be put in: the jobs are in.
--         Of a step that was done before, by a call whose reply was lost, the same again.
-- ERROR   the server is full (this is a push, and may be refused), or the destination's key is of another type: nothing was written
-- COST    O(n), O(n log N) into the schedule set
-- CRASH   before: neither job nor lock. after: both. A job that already has the lock was written by an earlier try whose reply was lost, and is
--         not written again; with a key that notes the step none of its jobs is, even where a run has released its lock.
-- The first write is one that a full server refuses, and the lock comes last: a refused push leaves no lock, although Lua does not
-- roll back.
local n, queue, done_key, found, written = tonumber(ARGV[1]), ARGV[2], ARGV[3], {}, false
local before = done_key ~= '' and redis.call('GET', done_key)
if before then return cjson.decode(before) end
for i = 1, n do
  local data, claim = ARGV[4 + i], read_lock_request(ARGV[4 + n + i])
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
      done = redis.pcall('ZADD', KEYS[2], string.format('%.6f', due_of(claim)), data)
    else
      done = redis.pcall('LPUSH', KEYS[2], data)
    end
    if type(done) == 'number' then
      written = true
      if not owner then obtain(claim) end
      if claim.mark then redis.pcall(unpack(claim.mark)) end
    end
  end
  if type(done) == 'table' then return done end
end
if done_key ~= '' then redis.pcall('SET', done_key, cjson.encode(found), 'PX', ARGV[4]) end
-- A name that is missing in `queues` only hides the queue from Sidekiq's pages: no reason to refuse written jobs.
local listed = written and queue ~= '' and redis.pcall('SADD', KEYS[1], queue)
if type(listed) == 'table' then found[n + 1] = listed.err end
return found
