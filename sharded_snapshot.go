package bloom

import "context"

// shardedSnapshot has those of all shards.
type shardedSnapshot struct {
	s      *Sharded
	shards []snapshot
}

func (s *Sharded) snapshot(ctx context.Context, progress func(done, total uint64)) (snapshot, error) {
	if s.refused != nil {
		return nil, s.refused
	}
	taken := &shardedSnapshot{s: s, shards: make([]snapshot, len(s.shards))}
	for i, b := range s.shards {
		var err error
		if taken.shards[i], err = takeSnapshot(ctx, b, progress); err != nil {
			return nil, s.name(i, err)
		}
	}
	return taken, nil
}

func (t *shardedSnapshot) exists(item string) bool {
	return t.shards[t.s.route(item)].exists(item)
}

func (t *shardedSnapshot) unchanged(ctx context.Context) error {
	return t.s.each(nil, func(i int) error { return t.shards[i].unchanged(ctx) })
}
