-- Prelude of the scripts that write the time: microseconds since 1970 by the
-- server's clock, 8 bytes, big-endian.
local function now()
  local time = redis.call('TIME')
  local n, b = time[1] * 1000000 + time[2], {}
  for i = 8, 1, -1 do
    b[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(b)
end
