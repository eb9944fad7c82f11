-- Makes staging the filter, with its sentinels and its TTL, if all batches are in
-- and nobody but this package's scripts has added to the live filter since staging
-- was opened. The state stays and tells what was published. Repeated or late it
-- finds its filter published, or another's, and does nothing. It spends the ticket
-- that is out: a change that is still on its way was not meant for this filter.
--
-- KEYS: filter, staging, state, tickets
-- ARGV: token, number of batches, TTL in milliseconds (0: none), what the filter is:
--       'empty' (then it replaces none) or 'rebuilt', sentinels
-- Answers {'done', generation}, {'lost'}, {'full'}, {'present'} or {'written', by how many
-- adds the live filter grew, how many of them are known}.
local live, staging, state = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', state, 'published') == ARGV[1] then
  redis.call('HSET', state, 'published', ARGV[1]) -- what the first copy wrote may have to be waited for
  return {'done', redis.call('HGET', state, 'generation')}
end
if redis.call('HGET', state, 'token') ~= ARGV[1] or redis.call('HGET', state, 'batches') ~= ARGV[2] then
  return {'lost'}
end
if redis.call('EXISTS', staging) == 0 then
  return {redis.call('HGET', state, 'refused') == ARGV[1] and 'full' or 'lost'}
end
if redis.call('EXISTS', live) == 1 then
  if ARGV[4] == 'empty' then
    return {'present'}
  end
  local grown = redis.call('BF.CARD', live) - redis.call('HGET', state, 'card')
  local added = tonumber(redis.call('HGET', state, 'added'))
  if grown ~= added then
    return {'written', tostring(grown), tostring(added)}
  end
end
local sentinels = {}
for i = 5, #ARGV do
  sentinels[#sentinels + 1] = ARGV[i]
end
local sealed = redis.call('BF.INSERT', staging, 'NOCREATE', 'ITEMS', unpack(sentinels))
for i = 1, #sentinels do
  if type(sealed[i]) ~= 'number' then
    return {'full'}
  end
end
-- As in publish.lua: an ACL that refuses a command leaves no filter with the lease
-- for a TTL.
local lease = redis.call('PTTL', staging)
if ARGV[3] == '0' then
  redis.call('PERSIST', staging)
else
  redis.call('PEXPIRE', staging, ARGV[3])
end
local renamed = redis.pcall('RENAME', staging, live)
if renamed.err then
  redis.call('PEXPIRE', staging, lease)
  return renamed
end
redis.call('HDEL', KEYS[4], 'open')
local generation = redis.call('HINCRBY', state, 'generation', 1)
local time = redis.call('TIME')
redis.call('HSET', state, 'published', ARGV[1], 'first', ARGV[5], 'purpose', ARGV[4], 'created', string.format('%.0f', time[1] * 1000000 + time[2]))
redis.call('HDEL', state, 'token', 'batches', 'added', 'card', 'refused', 'next first', 'next purpose')
if ARGV[3] == '0' then
  redis.call('PERSIST', state)
else
  redis.call('PEXPIRE', state, ARGV[3])
end
return {'done', tostring(generation)}
