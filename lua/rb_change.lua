-- Makes, empties, adopts or removes a RedisBloom filter, with its sentinels, its
-- TTL and its ticket in one atomic step.
--
-- KEYS: filter, companion, tickets, a rebuild's state
-- ARGV: ticket, milliseconds that tickets live, 'create' | 'reset' | 'adopt' |
--       'drop', rate, capacity, expansion (0: NONSCALING), TTL in milliseconds (0:
--       none), size of the filter that the caller saw, sentinels
-- Answers 'done', 'lost' (the ticket is spent), 'staging' (a rebuild runs),
-- 'changed' (the filter is not the one that the caller saw) or 'full' (no room for
-- sentinels).
local filter, companion, tickets, state, change = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[3]
local planted = string.sub(ARGV[1], 17)
if redis.call('HGET', tickets, 'open') ~= ARGV[1] then
  -- It was spent since the caller got it. A reset or drop that was made with it, or
  -- later, has done what he wants: his own first copy, or another instance.
  local last = redis.call('HGET', tickets, change)
  if not last or tonumber(last) < tonumber(planted) then
    return 'lost'
  end
  redis.call('HSET', tickets, change, last) -- what the first copy wrote may have to be waited for
  return 'done'
end
redis.call('HDEL', tickets, 'open')

local function done()
  if change == 'reset' or change == 'drop' then
    redis.call('HSET', tickets, change, planted)
    redis.call('PEXPIRE', tickets, ARGV[2])
  end
  return 'done'
end

local sentinels = {}
for i = 9, #ARGV do
  sentinels[#sentinels + 1] = ARGV[i]
end

-- Adds the sentinels, which nobody may have to miss.
local function seal(key)
  local added = redis.call('BF.INSERT', key, 'NOCREATE', 'ITEMS', unpack(sentinels))
  for i = 1, #sentinels do
    if type(added[i]) ~= 'number' then
      return false
    end
  end
  return true
end

-- A key of another type has no sentinels: the module answers 0.
local function sealed()
  for _, found in ipairs(redis.call('BF.MEXISTS', filter, unpack(sentinels))) do
    if found == 0 then
      return false
    end
  end
  return true
end

local exists = redis.call('EXISTS', filter) == 1
if change == 'drop' then
  if exists and not sealed() then
    return 'changed'
  end
  redis.call('DEL', filter, companion, state)
  return done()
end
if change == 'adopt' then
  if size(filter) ~= ARGV[8] or redis.call('BF.CARD', filter) == 0 then
    return 'changed'
  end
  if not seal(filter) then
    return 'full'
  end
  -- What a rebuild once left is about another filter.
  redis.call('HDEL', state, 'published', 'generation', 'created', 'first', 'purpose')
  return done()
end

if redis.call('EXISTS', companion) == 1 then
  return 'staging'
end
local ttl = tonumber(ARGV[7])
if change == 'create' and exists
  or change == 'reset' and not (sealed() and size(filter) == ARGV[8]) then
  return 'changed'
end
if change == 'reset' then
  ttl = redis.call('PTTL', filter)
  ttl = ttl < 0 and 0 or math.max(1, ttl)
end
-- At the companion first: where the server refuses, all stays as it is.
if ARGV[6] == '0' then
  redis.call('BF.RESERVE', companion, ARGV[4], ARGV[5], 'NONSCALING')
else
  redis.call('BF.RESERVE', companion, ARGV[4], ARGV[5], 'EXPANSION', ARGV[6])
end
if not seal(companion) then
  redis.call('DEL', companion)
  return 'full'
end
redis.call('RENAME', companion, filter)
if ttl > 0 then
  redis.call('PEXPIRE', filter, ttl)
end
-- What was published is no more: an empty filter never is young enough.
if change == 'create' then
  redis.call('DEL', state)
else
  redis.call('HDEL', state, 'published')
  if redis.call('HEXISTS', state, 'generation') == 1 then
    local time = redis.call('TIME')
    redis.call('HINCRBY', state, 'generation', 1)
    redis.call('HSET', state, 'created', string.format('%.0f', time[1] * 1000000 + time[2]))
  end
end
return done()
