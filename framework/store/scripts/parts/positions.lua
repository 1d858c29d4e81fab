-- newer(one, other): whether one position of the WAL ("hi/lo", hexadecimal) is newer than the other; an invalid one is older
--         than every position. Never raises.
local function halves(position)
  if type(position) ~= 'string' then return nil end
  local high, low = string.match(position, '^(%x+)/(%x+)$')
  if not high or #high > 8 or #low > 8 then return nil end
  return tonumber(high, 16), tonumber(low, 16)
end

local function newer(one, other)
  local high, low = halves(one)
  if not high then return false end
  local other_high, other_low = halves(other)
  if not other_high then return true end
  return high > other_high or (high == other_high and low > other_low)
end

