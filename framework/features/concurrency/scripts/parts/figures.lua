-- figures_concurrency(now, unrenewed_s): { limit, fields, slots, leaked ones among them, waiting jobs, since when the oldest waits,
--         ... } of each limit that has a state or waiting jobs. A slot is leaked if it has expired, or if it will in `unrenewed_s` and
--         its process has no lease; at most 100 of a limit are counted. Fields: limit, share, current, current_until, override,
--         override_until, portion.
-- COST    O(limits + scopes with waiting jobs), each bounded
local function figures_concurrency(now, unrenewed_s)
  local MOST_LIMITS, MOST_SCOPES = 2000, 1000
  local found, seen, leases = {}, {}, {}
  local function has_lease(identity)
    if leases[identity] == nil then leases[identity] = redis.pcall('EXISTS', 'aw:lease:' .. identity) == 1 end
    return leases[identity]
  end
  -- The slots of living processes are renewed, so that they are none of these.
  local function leaked(base)
    local until_then = string.format('%.6f', now + tonumber(unrenewed_s))
    local old, count = redis.pcall('ZRANGEBYSCORE', base .. ':running', '-inf', until_then, 'WITHSCORES', 'LIMIT', 0, 100), 0
    for i = 1, old.err and 0 or #old, 2 do
      local identity = string.match(old[i], '^(%S+) ')
      if tonumber(old[i + 1]) < now or (identity and not has_lease(identity)) then count = count + 1 end
    end
    return count
  end
  local function scopes_of(base)
    local scopes = redis.pcall('ZRANGE', base .. ':turns', 0, MOST_SCOPES - 1)
    if scopes.err then scopes = {} end
    for _, scope in ipairs((some_members(base .. ':full', MOST_SCOPES))) do scopes[#scopes + 1] = scope end
    return scopes
  end
  local function add(base, has_waiting)
    if seen[base] or string.sub(base, 1, 9) ~= 'aw:limit:' then return end
    seen[base] = true
    local waiting, oldest = 0, nil
    for _, scope in ipairs(has_waiting and scopes_of(base) or {}) do
      local key = base .. ':waiting:' .. scope
      local jobs = redis.pcall('ZCARD', key)
      if type(jobs) == 'number' and jobs > 0 then
        -- Those in blocks (wire/blocks.py).
        waiting = waiting + jobs + (tonumber(redis.pcall('HGET', 'aw:packed:held', key)) or 0)
        local since = tonumber(redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
        if since and (not oldest or since < oldest) then oldest = since end
      end
    end
    local fields = redis.pcall('HMGET', base, 'limit', 'share', 'current', 'current_until', 'override', 'override_until', 'portion')
    local slots = redis.pcall('ZCARD', base .. ':running')
    found[#found + 1] = base
    found[#found + 1] = fields.err and {} or fields
    found[#found + 1] = type(slots) == 'number' and slots or 0
    found[#found + 1] = leaked(base)
    found[#found + 1] = waiting
    found[#found + 1] = oldest and string.format('%.6f', oldest) or ''
  end
  for _, base in ipairs((some_members('aw:limits:waiting', MOST_LIMITS))) do add(base, true) end
  for _, base in ipairs((some_members('aw:limits', MOST_LIMITS))) do add(base, false) end
  return found
end

