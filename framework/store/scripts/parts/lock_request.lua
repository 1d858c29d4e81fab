-- read_lock_request(text): decode a lock request (wire/resources.py: LockRequest), nil for '' and nil.
-- rival(claim): the jid of another job that owns the lock and will run, nil when it is free or the job's own. `former` of the claim is
--         what find_owners.lua has found on the shard from which the job comes.
-- obtain(claim): give the lock to the job for its ttl; the notes of a lock that it already owns stay.
-- CRASH   as the step that they belong to. The keys are in the claim, as a shard is one server.
local function read_lock_request(text)
  if not text or text == '' then return nil end
  return cjson.decode(text)
end

local function rival(claim)
  local jid = holder_of(claim.key, claim.jid)
  local former = claim.former
  if not jid and former and (not former[2] or redis.call('EXISTS', former[2]) == 0) then jid = former[1] end
  return jid ~= claim.jid and jid or nil
end

local function obtain(claim)
  local keep_ms = string.format('%.0f', claim.ttl_ms)
  if owner_of(claim.key) == claim.jid then
    redis.call('PEXPIRE', claim.key, keep_ms)
  else
    take_lock(claim.key, claim.jid, claim.class, keep_ms, claim)
  end
end

