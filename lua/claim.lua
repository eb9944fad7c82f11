-- First half of CreateEmpty: plants a marker where no filter is.
--
-- A script that makes a filter wherever there is none would, delivered a second
-- time and late, put an empty filter where one was lost meanwhile, and deny all
-- its items. So the second half (create.lua) needs this marker, which it
-- consumes; a late copy of this half plants a marker with another time in its
-- token, which expires, and which is no filter to anyone.
--
-- KEYS: filter, companion
-- ARGV: marker magic, 16 random bytes, milliseconds that the marker lives
-- Answers {'marker', token}, {'filter'}, {'staging'} or {'foreign'} (an empty
-- string, which looks like no key to whoever reads it); the token may be another
-- creator's: whoever finds a marker completes it.
local found = redis.call('GETRANGE', KEYS[1], 0, 31)
if string.sub(found, 1, 8) == ARGV[1] then
  return {'marker', string.sub(found, 9)}
end
if found ~= '' then
  return {'filter'}
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {'foreign'}
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'staging'}
end
local token = ARGV[2] .. now()
redis.call('SET', KEYS[1], ARGV[1] .. token, 'PX', ARGV[3])
return {'marker', token}
