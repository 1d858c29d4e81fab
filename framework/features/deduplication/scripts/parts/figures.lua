-- figures_deduplication(): { keys of the database, 1 if all of them were looked at, locks among those that were }. Redis gives the
--         keys in the order of their hashes, so that the first ones are a sample of all.
-- COST    O(1000)
local function figures_deduplication()
  local keys = redis.call('DBSIZE')
  local page = redis.call('SCAN', '0', 'MATCH', 'aw:lock:*', 'COUNT', 1000)
  return { keys, page[1] == '0' and 1 or 0, #page[2] }
end

