-- figures_backlog(): the report about the memory of the shard, '' without one.
-- COST    O(1); the report has at most 200 parts
local function figures_backlog()
  local report = redis.pcall('GET', 'aw:memory')
  return type(report) == 'string' and report or ''
end

