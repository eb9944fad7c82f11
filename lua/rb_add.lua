-- Adds items to a RedisBloom filter and, while a rebuild runs, to the one that it
-- fills. It never makes a key. Adding twice, or late, is harmless.
--
-- KEYS: filter, companion (staging), a rebuild's state
-- ARGV: number of sentinels, sentinels, items
-- Answers {'missing'} (no filter with sentinels), {'staged'} (nor that, but staging
-- has the items), {'other', sentinel} (staging is of another shard) or {'added', a digit an item, text of the first error}: '0' was there, '1'
-- added, 'E' refused; fewer digits than items where the filter stopped at one.
local count = tonumber(ARGV[1])
local items, sentinels = {}, {}
for i = 2, #ARGV do
  local list = i <= count + 1 and sentinels or items
  list[#list + 1] = ARGV[i]
end

local function insert(key)
  local digits, problem = {}, ''
  for i, reply in ipairs(redis.call('BF.INSERT', key, 'NOCREATE', 'ITEMS', unpack(items))) do
    if type(reply) == 'number' then
      digits[i] = reply == 0 and '0' or '1'
    else
      digits[i] = 'E'
      problem = problem == '' and (reply.err or 'refused') or problem
    end
  end
  return table.concat(digits), problem
end

-- Without its state staging is never published.
local token = redis.call('EXISTS', KEYS[2]) == 1 and redis.call('HGET', KEYS[3], 'token')
if token then
  local owner = redis.call('HGET', KEYS[3], 'next first')
  if owner and owner ~= sentinels[1] then
    return {'other', owner}
  end
  local digits, problem = insert(KEYS[2])
  if problem ~= '' or #digits < #items then
    -- Staging is too small: the rebuild fails, not the add.
    redis.call('HSET', KEYS[3], 'refused', token)
    redis.call('DEL', KEYS[2])
  end
end
for _, found in ipairs(redis.call('BF.MEXISTS', KEYS[1], unpack(sentinels))) do
  if found == 0 then
    return {token and 'staged' or 'missing'}
  end
end
local digits, problem = insert(KEYS[1])
if token then -- publishing compares this with how the live filter has grown
  local _, added = string.gsub(digits, '1', '')
  redis.call('HINCRBY', KEYS[3], 'added', added)
end
return {'added', digits, problem}
