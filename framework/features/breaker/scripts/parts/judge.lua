-- breaker_judge(base, class, rule, runs, failures): count runs and deaths, and open the breaker when its rule says so.
-- Returns its state ('' closed, 'open', 'probing') and 'opened' if this call has opened it.
-- A death is a process in :owners without a lease that is surely dead: its parent saw its end (score below 0), it is not registered any
-- more, or heartbeats of other processes have come without a gap for a while. Else an outage of Redis would count as deaths.
-- COST    O(dead owners seen, 20 at most, + log of both sets)
-- CRASH   nothing moves.
local function breaker_open(base, now, cause, reason, wait)
  local opens = redis.call('HINCRBY', base, 'opens', 1)
  redis.call('HSET', base, 'state', 'open', 'cause', cause, 'reason', reason, 'wait', wait,
    'until', string.format('%.6f', now + wait), 'opened_at', string.format('%.6f', now))
  redis.call('HDEL', base, 'probe', 'owner', 'cautious')
  redis.call('DEL', base .. ':deaths')
  for _, field in ipairs(redis.call('HKEYS', base)) do
    if string.find(field, '^[rf]:') then redis.call('HDEL', base, field) end
  end
  return opens
end

-- The wait after a probe that has failed. That of an operator may have been shorter than the rule's.
local function breaker_longer_wait(base, rule)
  return math.min(rule.longest_wait, math.max(rule.probe_after, 2 * tonumber(redis.call('HGET', base, 'wait'))))
end

-- The next job is the probe: the last one has no end that says something.
local function breaker_await_probe(base)
  redis.call('HSET', base, 'state', 'open')
  redis.call('HDEL', base, 'probe', 'owner')
end

local function breaker_is_dead(owner, now, steady_s)
  if redis.call('EXISTS', 'aw:lease:' .. owner) == 1 then return false end
  local beat = redis.call('ZSCORE', 'aw:processes', owner)
  if not beat or tonumber(beat) < 0 then return true end
  local since = tonumber(redis.pcall('GET', 'aw:steady_since'))
  return since ~= nil and now - since >= steady_s
end

local function breaker_judge(base, class, rule, runs, failures)
  local now = redis_now()
  local state = redis.call('HGET', base, 'state') or ''
  local owner = redis.call('HGET', base, 'owner')
  redis.call('SADD', 'aw:breakers', class)
  local probe_died = false
  for _, one in ipairs(redis.call('ZRANGE', base .. ':owners', 0, 19)) do
    if breaker_is_dead(one, now, rule.steady) then
      redis.call('ZREM', base .. ':owners', one)
      redis.call('ZADD', base .. ':deaths', now, one)
      redis.call('HSET', base, 'cautious', 1)
      probe_died = probe_died or (state == 'probing' and one == owner)
    end
  end
  redis.call('ZREMRANGEBYSCORE', base .. ':deaths', '-inf', now - rule.within)
  local ttl = math.ceil(rule.within + rule.longest_wait + 86400)
  redis.call('EXPIRE', base, ttl)
  redis.call('EXPIRE', base .. ':deaths', ttl)
  redis.call('EXPIRE', base .. ':owners', ttl)
  if probe_died then
    breaker_open(base, now, 'deaths', 'the process of its probe died', breaker_longer_wait(base, rule))
    return 'open', 'opened'
  end
  -- A probe that no living process runs, and whose end was not told: it was deleted, or waits elsewhere.
  if state == 'probing' and not redis.call('ZSCORE', base .. ':owners', owner)
    and now > tonumber(redis.call('HGET', base, 'until')) + 60 then
    breaker_await_probe(base)
    return 'open'
  end
  if state ~= '' then return state end
  local deaths = redis.call('ZCARD', base .. ':deaths')
  if rule.deaths > 0 and deaths >= rule.deaths then
    breaker_open(base, now, 'deaths', deaths .. ' processes died that ran it', rule.probe_after)
    return 'open', 'opened'
  end
  if runs > failures then redis.call('HDEL', base, 'cautious') end
  if runs > 0 then
    local width = rule.within / 10
    local slice = math.floor(now / width)
    redis.call('HINCRBY', base, 'r:' .. slice, runs)
    redis.call('HINCRBY', base, 'f:' .. slice, failures)
    redis.call('EXPIRE', base, ttl)
    local all, failed = 0, 0
    local fields = redis.call('HGETALL', base)
    for i = 1, #fields, 2 do
      local kind, at = string.match(fields[i], '^([rf]):(%d+)$')
      if kind then
        if tonumber(at) <= slice - 10 then
          redis.call('HDEL', base, fields[i])
        elseif kind == 'r' then
          all = all + tonumber(fields[i + 1])
        else
          failed = failed + tonumber(fields[i + 1])
        end
      end
    end
    if rule.failures >= 0 and all >= rule.runs and failed > 0 and failed >= rule.failures * all then
      breaker_open(base, now, 'failures', failed .. ' of ' .. all .. ' runs failed', rule.probe_after)
      return 'open', 'opened'
    end
  end
  return ''
end
