-- figures_batches(): { batches, those that were looked at, those among them whose jobs have not all ended, when the oldest of these
--         was made }. Those that expire first are looked at: they are the oldest.
-- COST    O(1,000)
local function figures_batches()
  local size, looked, unfinished, oldest = redis.call('ZCARD', 'aw:batches'), 0, 0, nil
  for _, bid in ipairs(redis.call('ZRANGE', 'aw:batches', 0, 999)) do
    looked = looked + 1
    local fields = redis.call('HMGET', 'aw:batch:' .. bid, 'pending', 'created_at', 'finished_at', 'success_at', 'cancelled_at')
    if fields[1] and not (fields[3] or fields[4] or fields[5]) then
      unfinished = unfinished + 1
      local made = tonumber(fields[2])
      if made and (not oldest or made < oldest) then oldest = made end
    end
  end
  return { size, looked, unfinished, oldest and string.format('%.6f', oldest) or '' }
end

