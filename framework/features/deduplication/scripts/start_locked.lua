-- Release (until_executing) or renew (until_executed) the lock of a job that is about to start, unless it must see more first.
-- KEYS    1 its lock
-- ARGV    1 its jid  2 its class  3 for how many milliseconds it keeps the lock, 0: the lock is released
--         4 newer WAL positions of dropped duplicates: '0' ignore them, '1' return them first, '2' release nevertheless
--         5 '1' where the lock is kept for a period from now on, whatever becomes of the job (until_expired), else ''
--         then the positions that the job knows: database, position, ...
-- RETURN  newer positions of the duplicates: database, position, ...; with '1' nothing was written then, and the caller repeats the
--         call once a replica shows them
-- COST    O(databases)
-- CRASH   before: the lock is as the push left it. after: gone, or as long as its ttl. The job stays where it is.
local known = {}
for i = 6, #ARGV, 2 do known[ARGV[i]] = ARGV[i + 1] end
return start_lock(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], known, ARGV[5] == '1')
