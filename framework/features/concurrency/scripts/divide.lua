-- Note which slots of a limit a shard has and needs, and return the portion of the limit that it may use from now on. The portions of all
-- shards together never exceed the limit: a shard gives up slots by a portion that it has taken over, before others get them.
-- KEYS    1 the limit (HASH), on the shard with the role meta  2 limits that are divided (SET)
-- ARGV    1 name of the limit  2 shard  3 the whole limit, 0 or less for none  4 portion that the shard uses  5 version of that portion
--         6 slots taken there  7 waiting jobs there  8 seconds after which a shard that said nothing counts as silent  9.. all shards
-- HASH    version: the last one given out; since: when the division began; per shard `NAME:` and: granted (the most slots that the shard may
--         take), portion and version (given out last), need, limit, at (when it was heard)
-- RETURN  { portion, its version, 1 if the shard needs more slots than that, shards to hear first ... }
-- COST    O(shards)
-- CRASH   nothing moves. The slots of a shard are noted before it may use them, and freed after it has said that it does not. A portion
--         that was never taken over, or taken over late, has an older version than the next one, which the shard prefers.
-- HDEL first, which is allowed at maxmemory.
redis.call('HDEL', KEYS[1], '')
local now, shard, limit = redis_now(), ARGV[2], math.max(0, tonumber(ARGV[3]))
local used, version, taken, waiting = tonumber(ARGV[4]), tonumber(ARGV[5]) or 0, tonumber(ARGV[6]), tonumber(ARGV[7])
local stored, state = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #stored, 2 do state[stored[i]] = stored[i + 1] end
local function of(name, field) return tonumber(state[name .. ':' .. field]) end

if not state.since then
  state.since = string.format('%.6f', now)
  redis.call('HSET', KEYS[1], 'since', state.since)
end
-- Never below a version that a shard has: this HASH may have been lost.
local last = math.max(tonumber(state.version) or 0, version)
local given, given_version = of(shard, 'portion') or used, of(shard, 'version') or version
-- What the shard uses is known only if it has taken over the portion that it was given last.
local granted = math.max(used, taken)
if given_version ~= version then granted = math.max(granted, given, of(shard, 'granted') or 0) end
local needs, absent, silent, others = {}, {}, {}, 0
for i = 9, #ARGV do
  local name = ARGV[i]
  local at, has = of(name, 'at'), of(name, 'granted') or 0
  if name ~= shard and not at then
    absent[#absent + 1] = name
  elseif name ~= shard and now - at > tonumber(ARGV[8]) then
    if has > 0 then silent[#silent + 1] = name end
    needs[#needs + 1] = { has, name }
  elseif name ~= shard then
    local theirs = of(name, 'limit') or 0
    -- Processes may know different limits during a deploy: the lowest counts.
    if theirs > 0 and limit > 0 and (of(name, 'need') or 0) > 0 then limit = math.min(limit, theirs) end
    needs[#needs + 1] = { of(name, 'need') or 0, name }
  end
end
local need = math.min(limit, taken + waiting)
needs[#needs + 1] = { need, shard }
-- Also those of shards that are configured no more.
for field, value in pairs(state) do
  local name = string.match(field, '^(.*):granted$')
  if name and name ~= shard then others = others + (tonumber(value) or 0) end
end

-- The shards that need least get what they need; the others share the rest evenly. Returns that of this shard, and what no shard needs.
local function fair_portion()
  table.sort(needs, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  local rest, own = limit, 0
  for i, one in ipairs(needs) do
    local part = math.min(one[1], math.ceil(rest / (#needs - i + 1)))
    if one[2] == shard then own = part end
    rest = rest - part
  end
  return own, rest
end
-- Slots that no shard needs stay where they are.
local fair, spare = fair_portion()
local portion = math.min(math.max(fair, math.min(given, fair + spare)), math.max(0, limit - others))
-- A division that has just begun, here or after a loss of data, hears all shards before it gives out more.
local hears_all = not absent[1] or now - (tonumber(state.since) or now) >= tonumber(ARGV[8])
if portion > given and not hears_all then portion = given end

if portion ~= given or version > given_version then
  given_version = last + 1
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', given_version))
end
granted = math.max(granted, portion)
redis.call('HSET', KEYS[1], shard .. ':granted', granted, shard .. ':portion', portion,
  shard .. ':version', string.format('%.0f', given_version), shard .. ':need', need, shard .. ':limit', limit,
  shard .. ':at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], 30 * 86400000)
redis.call('SADD', KEYS[2], ARGV[1])
local lacks = portion < need and 1 or 0
local reply = { portion, given_version, lacks }
for _, name in ipairs(hears_all and {} or absent) do reply[#reply + 1] = name end
for _, name in ipairs(lacks == 1 and silent or {}) do reply[#reply + 1] = name end
return reply
