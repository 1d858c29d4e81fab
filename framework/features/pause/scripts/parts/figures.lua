-- figures_pause(): { class, held jobs, since when the oldest is held, ... } of each paused class with held jobs.
-- COST    O(classes), bounded
local function figures_pause()
  local found = {}
  for _, name in ipairs((some_members('aw:paused_classes', 5000))) do
    local jobs = redis.pcall('ZCARD', 'aw:paused_jobs:' .. name)
    if type(jobs) == 'number' and jobs > 0 then
      found[#found + 1] = name
      -- And those in blocks (wire/blocks.py).
      found[#found + 1] = jobs + (tonumber(redis.pcall('HGET', 'aw:packed:held', 'aw:paused_jobs:' .. name)) or 0)
      found[#found + 1] = redis.pcall('ZRANGE', 'aw:paused_jobs:' .. name, 0, 0, 'WITHSCORES')[2] or ''
    end
  end
  return found
end

