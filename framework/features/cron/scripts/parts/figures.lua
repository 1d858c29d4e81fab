-- figures_cron(now, application): { identity of the leader or '', states, orders, added entries }, each HASH as a flat list.
-- COST    O(entries)
local function figures_cron(_, application)
  local function hash(name)
    local key = 'aw:cron' .. name .. ':' .. application
    return redis.call('HLEN', key) <= 5000 and redis.call('HGETALL', key) or {}
  end
  return { redis.call('GET', 'aw:leader:' .. application) or '', hash(''), hash('_orders'), hash('_entries') }
end

