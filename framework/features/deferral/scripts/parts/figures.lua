-- figures_deferral(): { jobs of the schedule set, entries that were looked at, deferred ones among them, jobs in blocks }. The entries have places
--         at equal distances in the set.
-- COST    O(log N) for each of at most 100 entries, which together have at most 1 MB and one entry
local function figures_deferral()
  local MOST_ENTRIES, MOST_BYTES = 100, 1000000
  local size = redis.call('ZCARD', 'schedule')
  local looked, deferred, bytes = 0, 0, 0
  local step = math.max(1, size / MOST_ENTRIES)
  local place = math.floor(step / 2)
  while place < size and looked < MOST_ENTRIES and bytes <= MOST_BYTES do
    local job = redis.call('ZRANGE', 'schedule', math.floor(place), math.floor(place))[1]
    if not job then break end
    looked, bytes, place = looked + 1, bytes + #job, place + step
    if string.find(job, '"deferred":true', 1, true) or string.find(job, '"deferred": true', 1, true) then deferred = deferred + 1 end
  end
  local blocks = redis.call('ZCARD', 'aw:deferred_packed')
  if blocks > 0 then blocks = blocks + (tonumber(redis.call('HGET', 'aw:packed:held', 'aw:deferred_packed')) or 0) end
  return { size, looked, deferred, blocks }
end

