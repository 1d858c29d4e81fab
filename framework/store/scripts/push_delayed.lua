-- Push a job to the schedule set, due after a delay: for perform_in, as the producer's clock may be wrong.
-- KEYS    1 schedule set
-- ARGV    1 delay in seconds  2 payload  3 status key, '' if the job is not tracked  4 how many seconds its state is kept
-- RETURN  this server's time in seconds, as text; then the error of the state, where that was refused: the job is written
-- ERROR   the server is full (this is a push, and may be refused), or the set's key is of another type: nothing was written
-- COST    O(log N)
-- CRASH   before: nothing. after: in the set. Redis's clock decides when it is due.
-- The status key is not among KEYS, because an ACL that refuses it would refuse the job.
local seconds = redis_now()
local added = redis.pcall('ZADD', KEYS[1], string.format('%.6f', seconds + tonumber(ARGV[1])), ARGV[2])
if type(added) == 'table' then return added end
local state = ARGV[3] ~= '' and redis.pcall('SET', ARGV[3], 'queued', 'EX', ARGV[4])
return { string.format('%.6f', seconds), type(state) == 'table' and state.err or nil }
