-- lock_for_ticket(holds), wake_lock(entry): the ticket of a held job names its lock, which lasts as long as the job is held
--         (JobResources.on_hold); when the job is released, the lock lasts as usual again.
-- CRASH   as the step that it belongs to.
local function lock_for_ticket(holds)
  local lock = holds and holds.lock
  return lock and { lock.key, lock.owner, lock.after_ms }
end

local function wake_lock(entry)
  local last_ms = type(entry) == 'table' and tonumber(entry[3])
  if last_ms and owner_of(tostring(entry[1])) == entry[2] then
    redis.pcall('PEXPIRE', entry[1], string.format('%.0f', last_ms))
  end
end

