-- some_members(key, most): about `most` members of a SET, and whether it has more. The same ones at each call while it is unchanged.
local function some_members(key, most)
  local page = redis.pcall('SSCAN', key, '0', 'COUNT', most)
  if page.err then return {}, false end
  return page[2], page[1] ~= '0'
end

