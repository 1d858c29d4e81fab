-- Add seconds of SQL to the minute of this server's clock.
-- KEYS    1.. the minutes (HASH each): the one of a minute is its number modulo their count
-- ARGV    field and seconds, in turns
-- RETURN  nothing
-- COST    O(n), n fields
-- CRASH   nothing moves; all or none is added. A repeated call adds again, so no caller repeats it. A key expires before its minute
--         comes again.
local key = KEYS[math.floor(redis_now() / 60) % #KEYS + 1]
for i = 1, #ARGV, 2 do redis.call('HINCRBYFLOAT', key, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', key, 150)
