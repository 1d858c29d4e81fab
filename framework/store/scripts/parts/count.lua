-- count_processed(n): add n to Sidekiq's counters of processed jobs, in the step that acknowledges the jobs.
-- stat:processed           STRING, integer
-- stat:processed:DATE      the same of one day of UTC, by Redis's clock; kept for five years
-- COST    O(1)
-- CRASH   as the step that it belongs to: a job is counted when it is gone, and once.
-- A key of another type, or a refusing server, loses the count and never the acknowledgement.
local function date_of(seconds)
  -- Days are counted from 0000-03-01, so that the leap day is the last of its year; eras have 400 years, 146,097 days.
  local days = math.floor(seconds / 86400) + 719468
  local era = math.floor(days / 146097)
  local day = days - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  return string.format('%04d-%02d-%02d', era * 400 + year + (month <= 2 and 1 or 0), month, day)
end

local function count_processed(n)
  redis.pcall('INCRBY', 'stat:processed', n)
  local known, now = pcall(function() return redis_now() end)
  if not known then return end
  local of_day = 'stat:processed:' .. date_of(math.floor(now))
  if redis.pcall('INCRBY', of_day, n) == n then redis.pcall('EXPIRE', of_day, 157680000) end
end

