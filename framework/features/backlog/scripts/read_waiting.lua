-- Count the jobs that wait at limits, of all scopes. Reads only.
-- KEYS    the limits (parts/slots.lua)
-- ARGV    none
-- RETURN  the number, of 200 scopes of each limit at most
-- COST    O(scopes)
-- CRASH   nothing moves.
local found = 0
for _, base in ipairs(KEYS) do
  for _, scopes in ipairs({ redis.pcall('ZRANGE', base .. ':turns', 0, 99), redis.pcall('SRANDMEMBER', base .. ':full', 100) }) do
    for _, scope in ipairs(scopes) do
      local waiting = redis.pcall('ZCARD', base .. ':waiting:' .. scope)
      found = found + (type(waiting) == 'number' and waiting or 0)
    end
  end
end
return found
