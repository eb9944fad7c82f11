-- ORs one chunk of a builder's bits into its staging, in place: adders write there
-- too. Chunks come in order, and the header counts them, so a chunk that comes
-- again is not taken again, and one that comes after a failover lost some sends
-- the builder back.
--
-- KEYS: companion, two scratch keys
-- ARGV: token, offset of the token, offset of the count, number of this chunk,
--       where it begins, its bytes ('' if they are all 0)
-- Answers {'merged', count} or {'lost'}.
local function int64(s)
  local n = 0
  for i = 1, 8 do
    n = n * 256 + string.byte(s, i)
  end
  return n
end

local function bytes(n)
  local b = {}
  for i = 8, 1, -1 do
    b[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(b)
end

local staging, data = KEYS[1], ARGV[6]
if redis.call('GETRANGE', staging, ARGV[2], ARGV[2] + 23) ~= ARGV[1] then
  return {'lost'}
end
local count, number = int64(redis.call('GETRANGE', staging, ARGV[3], ARGV[3] + 7)), tonumber(ARGV[4])
if count ~= number then
  return {'merged', tostring(count)}
end
if data ~= '' then
  local ok, both = pcall(function()
    redis.call('SET', KEYS[2], redis.call('GETRANGE', staging, ARGV[5], ARGV[5] + #data - 1))
    redis.call('SET', KEYS[3], data)
    redis.call('BITOP', 'OR', KEYS[2], KEYS[2], KEYS[3])
    return redis.call('GET', KEYS[2])
  end)
  redis.call('DEL', KEYS[2], KEYS[3]) -- also where an ACL refuses something
  if not ok then
    return type(both) == 'table' and both or redis.error_reply(tostring(both))
  end
  redis.call('SETRANGE', staging, ARGV[5], both)
end
redis.call('SETRANGE', staging, ARGV[3], bytes(count + 1))
return {'merged', tostring(count + 1)}
