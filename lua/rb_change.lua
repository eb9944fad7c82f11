-- Makes, empties, adopts or removes a RedisBloom filter, with its sentinels, its
-- TTL and its ticket in one atomic step.
--
-- KEYS: filter, companion, ticket, a rebuild's state
-- ARGV: ticket, 'create' | 'reset' | 'adopt' | 'drop', rate, capacity, expansion
--       (0: NONSCALING), TTL in milliseconds (0: none), least BF.CARD, sentinels
-- Answers 'done', 'lost' (no such ticket), 'staging' (a rebuild runs), 'changed'
-- (the filter is not what the caller saw) or 'full' (no room for sentinels).
local key, change = KEYS[1], ARGV[2]
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return 'lost'
end
redis.call('DEL', KEYS[3])
if change == 'drop' then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[4])
  return 'done'
end
if redis.call('EXISTS', KEYS[2]) == 1 and change ~= 'adopt' then
  return 'staging'
end

local sentinels = {}
for i = 8, #ARGV do
  sentinels[#sentinels + 1] = ARGV[i]
end

-- Adds the sentinels, which nobody may have to miss.
local function seal()
  local added = redis.call('BF.INSERT', key, 'NOCREATE', 'ITEMS', unpack(sentinels))
  for i = 1, #sentinels do
    if type(added[i]) ~= 'number' then
      return false
    end
  end
  return true
end

if change == 'adopt' then
  if redis.call('BF.CARD', key) < tonumber(ARGV[7]) then
    return 'changed'
  end
  return seal() and 'done' or 'full'
end

local ttl = tonumber(ARGV[6])
if change == 'create' then
  if redis.call('EXISTS', key) == 1 then
    return 'changed'
  end
else
  if redis.call('BF.CARD', key) < tonumber(ARGV[7]) then
    return 'changed'
  end
  ttl = math.max(0, redis.call('PTTL', key))
  redis.call('DEL', key)
end
if ARGV[5] == '0' then
  redis.call('BF.RESERVE', key, ARGV[3], ARGV[4], 'NONSCALING')
else
  redis.call('BF.RESERVE', key, ARGV[3], ARGV[4], 'EXPANSION', ARGV[5])
end
if not seal() then
  redis.call('DEL', key)
  return 'full'
end
-- What was published is no more: an empty filter never is young enough.
if change == 'create' then
  redis.call('DEL', KEYS[4])
elseif redis.call('HDEL', KEYS[4], 'published', 'created') > 0 then
  redis.call('HINCRBY', KEYS[4], 'generation', 1)
end
if ttl > 0 then
  redis.call('PEXPIRE', key, ttl)
end
return 'done'
