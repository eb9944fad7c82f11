-- Puts a batch of source items into staging. Batches come in order and are
-- counted, so that one that comes again is not taken again. One that staging
-- refuses ends the rebuild.
--
-- KEYS: staging, state
-- ARGV: token, number of this batch, items
-- Answers {'taken', count}, {'lost'} or {'full'}.
if redis.call('HGET', KEYS[2], 'token') ~= ARGV[1] or redis.call('EXISTS', KEYS[1]) == 0 then
  return {redis.call('HGET', KEYS[2], 'refused') == ARGV[1] and 'full' or 'lost'}
end
local count = redis.call('HGET', KEYS[2], 'batches')
if count ~= ARGV[2] then
  return {'taken', count}
end
local items = {}
for i = 3, #ARGV do
  items[#items + 1] = ARGV[i]
end
local replies = redis.call('BF.INSERT', KEYS[1], 'NOCREATE', 'ITEMS', unpack(items))
for i = 1, #items do
  if type(replies[i]) ~= 'number' then
    redis.call('HSET', KEYS[2], 'refused', ARGV[1])
    redis.call('DEL', KEYS[1])
    return {'full'}
  end
end
return {'taken', tostring(redis.call('HINCRBY', KEYS[2], 'batches', 1))}
