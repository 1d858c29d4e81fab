-- Renew the leases of a supervisor's live children whose own heartbeats are late.
-- KEYS    1 registry (ZSET)  2.. the children's leases
-- ARGV    1 lease in ms  2 silence in seconds that is still no lateness  3 longest silence in seconds
--         4 since when the supervisor has seen Redis up (earlier silence does not count; seconds of Redis's clock)
--         5 '1' after an outage of Redis: no silence counts, and expired leases are restored, as no process can have
--         recovered the jobs
--         6.. the children's identities
-- RETURN  { Redis's time in seconds, per child its silence in whole seconds; -1 when it is not registered }
-- COST    O(children)
-- CRASH   nothing moves. The lease of a child that is silent for too long is not renewed, and expires.
local now = redis_now()
local identities = {}
for i = 6, #ARGV do identities[#identities + 1] = ARGV[i] end
local reply = { string.format('%.6f', now) }
for i, beat in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(identities))) do
  local silence = -1
  if beat and tonumber(beat) >= 0 then
    silence = ARGV[5] == '1' and 0 or math.max(0, math.floor(now - math.max(tonumber(beat), tonumber(ARGV[4]))))
    if now - tonumber(beat) > tonumber(ARGV[2]) and silence < tonumber(ARGV[3]) then
      local held = redis.call('PEXPIRE', KEYS[1 + i], ARGV[1])
      if held == 0 and ARGV[5] == '1' then redis.call('SET', KEYS[1 + i], '1', 'PX', ARGV[1]) end
    end
  end
  reply[1 + i] = silence
end
return reply
