-- Keep the breaker of a class: count, note whether this process still runs it, end a probe, and say whether a held job is to be a probe.
-- KEYS    1 the breaker of the class (HASH)  2 held jobs of the class (ZSET)  3 marker of the pause of the class (STRING)
-- ARGV    1 class 2 identity of the process 3 the rule as JSON 4 ended runs since the last call 5 failed ones of these
--         6 whether the process runs jobs of the class (1, 0) 7 id of an ended probe, '' for none 8 its end: 'succeeded', 'failed', 'undecided'
--         9 milliseconds of the marker 10 beginning of the marker
-- RETURN  { 1 a held job is to be released as a probe, else 0; 'opened', 'closed' or ''; cause; reason; until; state }
-- COST    that of parts/judge.lua
-- CRASH   nothing moves. The end of a probe that is not told: after a minute another job is the probe. A repeated call ends no probe
--         twice, and counts ARGV 4 and 5 again, so no caller sends them twice.
local base = KEYS[1]
local rule = cjson.decode(ARGV[3])
local runs, failures = tonumber(ARGV[4]), tonumber(ARGV[5])
local event
if ARGV[7] ~= '' and redis.call('HGET', base, 'state') == 'probing' and redis.call('HGET', base, 'probe') == ARGV[7] then
  local now = redis_now()
  local cause = redis.call('HGET', base, 'cause')
  -- A process that lives after its probe has ended: for deaths that is a success, also if the job has failed.
  if ARGV[8] == 'undecided' then
    breaker_await_probe(base)
  elseif ARGV[8] == 'failed' and cause ~= 'deaths' then
    breaker_open(base, now, cause, 'its probe failed', breaker_longer_wait(base, rule))
    event = 'opened'
  else
    redis.call('DEL', base, base .. ':deaths')
    redis.call('SREM', 'aw:breakers', ARGV[1])
    event = 'closed'
  end
end
if ARGV[6] == '1' then
  redis.call('ZADD', base .. ':owners', redis_now(), ARGV[2])
else
  redis.call('ZREM', base .. ':owners', ARGV[2])
end
local state = ''
if event ~= 'closed' then
  local judged, opened = breaker_judge(base, ARGV[1], rule, runs, failures)
  state, event = judged, event or opened
end
local marker = redis.pcall('GET', KEYS[3])
local own = type(marker) == 'string' and string.sub(marker, 1, #ARGV[10]) == ARGV[10]
local cause, reason, due = unpack(redis.call('HMGET', base, 'cause', 'reason', 'until'))
local held = redis.call('EXISTS', KEYS[2]) == 1
local release = 0
if state == '' then
  -- The process that resumes classes finds the jobs now.
  if own then redis.call('DEL', KEYS[3]) end
elseif held then
  redis.call('SET', KEYS[3], ARGV[10] .. ': ' .. (reason or ''), 'PX', ARGV[9])
  if state == 'open' and redis_now() >= tonumber(due) then release = 1 end
end
if state == '' and redis.call('EXISTS', base, base .. ':deaths', base .. ':owners') == 0 then
  redis.call('SREM', 'aw:breakers', ARGV[1])
end
return { release, event or '', cause or '', reason or '', due or '', state }
