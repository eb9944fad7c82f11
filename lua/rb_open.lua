-- Opens staging for a rebuild of a RedisBloom filter, and its state, a hash, both
-- under a lease. Repeated, it finds its own staging or its own filter; late, it
-- leaves staging that nobody fills, until the lease ends.
--
-- KEYS: filter, staging, state
-- ARGV: 16 random bytes, rate, capacity, expansion (0: NONSCALING), lease in
--       milliseconds, size and published token of the filter that the caller saw
--       ('' for none), how old in microseconds that may be to do (0: it doesn't),
--       what the filter will be: 'empty' or 'rebuilt', sentinels
-- Answers {'open', token}, {'busy', milliseconds left}, {'young'}, {'changed'} (the
-- filter is not the one that the caller saw), {'done'} or {'unsealed'} (a filter of
-- another program).
local live, staging, state = KEYS[1], KEYS[2], KEYS[3]
local published = redis.call('HGET', state, 'published') or ''
if string.sub(published, 1, 16) == ARGV[1] then
  return {'done'}
end
local card = redis.call('BF.CARD', live) -- refuses keys of another type
if redis.call('EXISTS', live) == 1 then
  for i = 10, #ARGV do
    if redis.call('BF.EXISTS', live, ARGV[i]) == 0 then
      return {'unsealed'}
    end
  end
end
if redis.call('EXISTS', staging) == 1 then
  local token = redis.call('HGET', state, 'token') or ''
  if string.sub(token, 1, 16) ~= ARGV[1] then
    return {'busy', tostring(redis.call('PTTL', staging))}
  end
  redis.call('PEXPIRE', staging, ARGV[5])
  redis.call('PEXPIRE', state, ARGV[5])
  return {'open', token}
end
local seen = size(live)
if seen ~= ARGV[6] or seen ~= '' and published ~= ARGV[7] then
  return {'changed'}
end
if ARGV[8] ~= '0' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] - tonumber(redis.call('HGET', state, 'created')) < tonumber(ARGV[8]) then
    return {'young'}
  end
end
local token = ARGV[1] .. now()
if ARGV[4] == '0' then
  redis.call('BF.RESERVE', staging, ARGV[2], ARGV[3], 'NONSCALING')
else
  redis.call('BF.RESERVE', staging, ARGV[2], ARGV[3], 'EXPANSION', ARGV[4])
end
local leased = redis.pcall('PEXPIRE', staging, ARGV[5])
if type(leased) == 'table' then -- an ACL refuses it: nobody would remove this
  redis.call('DEL', staging)
  return leased
end
redis.call('HSET', state, 'token', token, 'batches', 0, 'added', 0, 'card', card,
  'next first', ARGV[10], 'next purpose', ARGV[9])
redis.call('PEXPIRE', state, ARGV[5])
return {'open', token}
