-- release(holds): release a job's resources, in the same step that removes the job from its place. Returns the error of the status
--         or of what waits for the job.
-- holds   JSON, '' or nil for nothing:
--           lock   {key, owner, keep_ms, class, bid, expiry}: deleted when `owner` still owns it; with keep_ms above 0 it stays for
--                  this time instead, and with a class it is taken again if it is free: the job goes back to its queue. An `expiry`
--                  replaces that of the lock, 0: the job does not expire any more
--           slots  [[base, member], ...]: each is freed, and in the same step given to a job that waits for one (parts/slots.lua)
--           cancelled  jid of a job that ends because it was cancelled: its mark is removed
--           iteration  jid of an iterating job that does not run again: its cursor is removed
--           counter  series in which the job is counted, when it ends
--           status [key, state, seconds that it is kept] of a tracked job
--           and by the name of each feature that waits for the end of the job, the arguments of its function release_NAME
-- release_resources(held): the same of a table. try_release(held): the same of both; it raises nothing, and returns every error.
-- CRASH   as the step that they belong to: a job that left its place without a release would block others until a TTL.
-- Called after the job was found at its place: a fenced process has nothing to release, as the process that recovered the
-- job holds the same. The keys are in the JSON, as a shard is one server; nothing is written to a key of another type.
local function release_resources(held)
  if not held then return end
  local lock = held.lock
  if lock then
    local owner = owner_of(lock.key)
    if owner == lock.owner then
      if lock.keep_ms > 0 then
        -- Never shorter than it is: a process that does not know the class does not know for how long its jobs keep a lock.
        local keep_ms = math.max(lock.keep_ms, redis.call('PTTL', lock.key))
        redis.call('PEXPIRE', lock.key, string.format('%.0f', keep_ms))
        redis.call('HDEL', lock.key, 'begun', lock.expiry == 0 and 'expiry' or 'begun')
        note_terms(lock.key, lock)
      else
        redis.call('DEL', lock.key)
      end
    elseif lock.class and (owner or redis.call('EXISTS', lock.key) == 0) and not holder_of(lock.key, lock.owner) then
      take_lock(lock.key, lock.owner, lock.class, string.format('%.0f', lock.keep_ms), lock)
    end
  end
  for _, slot in ipairs(held.slots) do
    if free_slot(slot[1], slot[2]) then hand_over(slot[1], redis_now(), 20) end
  end
  if held.cancelled then
    redis.pcall('ZREM', 'aw:cancelled', held.cancelled)
    redis.pcall('UNLINK', 'it-' .. held.cancelled)
  end
  if held.iteration then redis.pcall('UNLINK', 'it-' .. held.iteration) end
  if held.counter then redis.pcall('HINCRBY', 'aw:counters', held.counter, 1) end
  local status = held.status
  local written = status and redis.pcall('SET', status[1], status[2], 'EX', status[3])
  -- Their keys may be of another type; the job has left its place in any case.
  local failed = tell_waiters(held)
  if failed then return failed end
  if type(written) == 'table' and written.err then return written.err end
end

local function release(holds)
  if holds and holds ~= '' then return release_resources(cjson.decode(holds)) end
end

-- An ACL may refuse a command, and Lua does not roll back: the jobs behind this one are still moved. `held` is a table or JSON.
local function try_release(held)
  local done, failed = pcall(type(held) == 'table' and release_resources or release, held)
  return failed and (done and failed or failed.err or tostring(failed)) or nil
end
