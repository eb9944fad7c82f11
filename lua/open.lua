-- Opens staging for a rebuild: an empty filter of the whole size at the companion
-- key, with a magic of its own, the builder's token and a lease. The tags of its
-- blocks are left to the merge, if there will be one, since writing them all keeps
-- Redis busy for much longer than allocating the string. Nothing else ever makes a
-- companion key. Repeated, it finds its own staging, or its own filter live; late,
-- it leaves staging that nobody fills, until the lease ends.
--
-- KEYS: filter, companion
-- ARGV: live magic, staging magic, marker magic, 16 random bytes, header, size of
--       the string, trailer, tag of a block ('' for Classic), lease in
--       milliseconds, offset of the token, offset of created, token of the
--       filter that the caller decided by ('' for none), age below which that
--       one would do, in microseconds (0: it would not)
-- Answers {'open', token}, {'busy', milliseconds that the other's lease has left},
-- {'young'}, {'changed'} (the filter is not the one that the caller knows),
-- {'done'} (this rebuild was published) or {'foreign'} (the key holds no filter).
local live, staging = KEYS[1], KEYS[2]
local trailer, tokenAt = ARGV[7], ARGV[9]

local magic = redis.call('GETRANGE', live, 0, 7)
local token = redis.call('GETRANGE', live, tokenAt, tokenAt + 23)
if magic == ARGV[1] and string.sub(token, 1, 16) == ARGV[4] then
  return {'done'}
elseif magic ~= '' and magic ~= ARGV[1] and magic ~= ARGV[3] then
  return {'foreign'}
end
local building = redis.call('GETRANGE', staging, tokenAt, tokenAt + 23)
if string.sub(building, 1, 16) == ARGV[4] then
  redis.call('PEXPIRE', staging, ARGV[8])
  return {'open', building}
elseif redis.call('EXISTS', staging) == 1 then
  return {'busy', tostring(redis.call('PTTL', staging))}
end
if token ~= ARGV[11] then
  return {'changed'}
end
if ARGV[12] ~= '0' then
  local created, time = 0, redis.call('TIME')
  for i = 1, 8 do
    created = created * 256 + string.byte(redis.call('GETRANGE', live, ARGV[10] + i - 1, ARGV[10] + i - 1))
  end
  if time[1] * 1000000 + time[2] - created < tonumber(ARGV[12]) then
    return {'young'}
  end
end

token = ARGV[4] .. now()
local tag, first, last = ARGV[13], #ARGV[5], ARGV[6] - #trailer
redis.call('SETRANGE', staging, last, trailer) -- allocates the whole string, once
local leased = redis.pcall('PEXPIRE', staging, ARGV[8])
if type(leased) == 'table' then -- an ACL refuses it: nobody would remove this
  redis.call('DEL', staging)
  return leased
end
if tag ~= '' then
  local chunk = string.rep(string.rep('\0', 64 - #tag) .. tag, 1024)
  while first < last do
    redis.call('SETRANGE', staging, first, string.sub(chunk, 1, last - first))
    first = first + #chunk
  end
end
redis.call('SETRANGE', staging, 0, ARGV[5])
redis.call('SETRANGE', staging, tokenAt, token)
return {'open', token}
