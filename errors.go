package bloom

import "errors"

// The errors that callers branch on. What a method returns wraps one of them
// with the filter's key, the operation and the values involved, so compare with
// [errors.Is]. Errors of Redis and of the context are wrapped as well.
var (
	// ErrInvalidParams says that a size, a rate, a key, a duration or a client
	// was refused at construction. The text names the value and what is allowed.
	ErrInvalidParams = errors.New("invalid parameters")

	// ErrTooLarge says that a filter does not fit into one Redis string
	// (512 MiB). The text names the bits wanted, the limit and how many shards
	// would do.
	ErrTooLarge = errors.New("too large for one key")

	// ErrNotReady says that there is no such filter on the server that answered:
	// never built, evicted, expired, flushed or dropped. It proves nothing about
	// any item.
	ErrNotReady = errors.New("filter not ready")

	// ErrCorrupt says that the key holds something that is not a whole filter:
	// another type, a foreign string, or a filter that lost bytes.
	ErrCorrupt = errors.New("not a whole filter")

	// ErrParamsMismatch says that CreateEmpty found a filter that is smaller or
	// looser than Config asks for, or of another layout; or any call another shard
	// than it looked for: of another number or order of shards.
	ErrParamsMismatch = errors.New("stored filter does not satisfy the configuration")

	// ErrRebuilding says that a rebuild of the filter is under way, which the
	// operation must not disturb. Try again when it has ended.
	ErrRebuilding = errors.New("a rebuild is running")

	// ErrRebuildRefused says that a rebuild was not published: the source was empty
	// or too small, a check failed, or the builder lost its lease. The text has the
	// reason.
	ErrRebuildRefused = errors.New("rebuild refused")

	// ErrFull says that a RedisBloom filter without scaling has no room for some of
	// the items. What is known of each item comes with it.
	ErrFull = errors.New("filter is full")

	// ErrNoModule says that the server does not know the BF commands.
	ErrNoModule = errors.New("no RedisBloom module on this server")

	// ErrNotFound is what a [Loader] returns, plain or wrapped, for an id that
	// has no row, and what [Guard.Get] returns for it.
	ErrNotFound = errors.New("bloom: not found")

	// ErrOverloaded says that [GuardOptions].MaxLoads loads run and as many wait:
	// the caller was turned away so that the database is not.
	ErrOverloaded = errors.New("too many loads at once")

	// ErrClosed says that a [Guard] was closed, and loads nothing any more.
	ErrClosed = errors.New("guard is closed")
)
