-- Takes the right to fill a cache entry: plants a token where nothing is, or
-- over exactly the bytes that the caller could not decode. Whatever is there
-- otherwise stays. Repeated, it finds its own token; late, it plants a token
-- that nobody fills and that expires.
--
-- KEYS: the entry
-- ARGV: tag and 16 random bytes, bytes to replace ('' for none), milliseconds
-- Answers what is stored now: the token, another's, or an entry.
local found = redis.call('GET', KEYS[1])
if found and (ARGV[2] == '' or found ~= ARGV[2]) then
  return found
end
local token = ARGV[1] .. now()
redis.call('SET', KEYS[1], token, 'PX', ARGV[3])
return token
