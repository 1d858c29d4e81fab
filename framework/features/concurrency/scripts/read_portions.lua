-- Read the limits of this shard that hold on all shards together.
-- KEYS    1 limits that hold on all shards (SET)
-- ARGV    keys of further limits
-- RETURN  per limit: { its key, the whole limit (0 none, below 0 pause), '1' if its jobs hold while the shard with the role meta is away,
--         portion, version of the portion, slots taken, waiting jobs as far as they can matter }; at most 1000 limits
-- COST    O(limits), and per limit O(scopes), at most 100
-- CRASH   nothing moves. A portion of a limit that holds on this shard alone by now is removed: it must not count later.
local now, found, bases = redis_now(), {}, (some_members(KEYS[1], 1000))
for _, base in ipairs(ARGV) do
  if redis.pcall('SISMEMBER', KEYS[1], base) ~= 1 then bases[#bases + 1] = base end
end
for _, base in ipairs(bases) do
  local names = { 'override', 'override_until', 'limit', 'current', 'current_until', 'portion', 'portion_version' }
  local fields = string.sub(base, 1, 9) == 'aw:limit:' and redis.pcall('HMGET', base, unpack(names)) or { err = true }
  if not fields.err then
    local limit, waiting = 0, 0
    if is_shared(fields[3]) then
      limit = whole_limit(fields, now) or 0
    elseif fields[6] then
      redis.call('HDEL', base, 'portion')
      fields[6] = false
    end
    local scopes = redis.pcall('ZRANGE', base .. ':turns', 0, 99)
    for _, scope in ipairs(scopes.err and {} or scopes) do
      waiting = waiting + (tonumber(redis.pcall('ZCARD', base .. ':waiting:' .. scope)) or 0)
      if waiting >= limit then break end
    end
    local slots = string.match(fields[6] or '', '^%d+') or '0'
    local holds = string.sub(fields[3] or '', 1, 2) == '+0' and '1' or ''
    found[#found + 1] = { base, limit, holds, tonumber(slots), fields[7] or '0', running(base), waiting }
  end
end
return found
