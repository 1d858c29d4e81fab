-- Give a job a slot of its limit, or hold it until a slot is free.
-- KEYS    1 working list  2 the limit (HASH; parts/slots.lua has the others)
-- ARGV    1 payload as fetched  2 slot member  3 jid  4 queue  5 the limit as this process knows it: 0 none, below 0 pause
--         6 seconds until a slot that is not renewed is free again  7 since when it has waited, '' when it has not yet
--         8 scope, '' for none  9 most slots of a scope, 0 no such limit  10 'wait', or 'refuse': then it does not wait
--         11 its resources of other limits (parts/release.lua), released when it waits
-- RETURN  { 1 has its slot, 0 waits, 2 refused, -1 fenced: the process no longer owns it, nothing was written; slots taken; limit;
--           jobs of its scope that wait }
-- ERROR   a key of the limit is of another type: the job stays in the working list
-- COST    O(W + log N), and as much for each waiting job that gets a free slot, a few as a rule
-- CRASH   before: in the working list. after: there with its slot, which ends with the job or its process, or among the waiting
--         jobs. Called again, it finds the slot taken, or the job gone.
return request_slot({
  working = KEYS[1], base = KEYS[2], payload = ARGV[1], member = ARGV[2], jid = ARGV[3], queue = ARGV[4], limit = ARGV[5],
  ttl_s = ARGV[6], since = ARGV[7], scope = ARGV[8], share = ARGV[9], may_wait = ARGV[10] == 'wait', may_be_reserved = true,
  holds = ARGV[11] ~= '' and cjson.decode(ARGV[11]) or nil,
})
