// Package shop is a product service behind a [bloom.Guard]: a database, a Redis, a
// filter that is kept warm, and HTTP handlers.
package shop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bloomguard/bloom"
	"github.com/redis/go-redis/v9"
)

// Config says what a shop is made of. The zero value is a shop that is all
// embedded, with empty tables.
type Config struct {
	DSN      string        // database, see [OpenDatabase]. Empty: an embedded SQLite
	Conns    int           // connections to it at once. 0: 8
	RTT      time.Duration // added to each round trip to the database, to try out one that is far away
	Redis    string        // host:port or redis:// URL. Empty: an embedded one (miniredis)
	Prefix   string        // of all keys in Redis. Empty: "shop:"
	Seed     int           // products to make if there are none
	Capacity uint64        // ids that the filter is sized for. 0: those in the table whenever it is built, and half as many
	MaxAge   time.Duration // of the filter; then it is built anew. 0: 24 h
	Timeout  time.Duration // of a request, and so of every transaction. 0: 2 s
	Settle   time.Duration // see [bloom.RebuildOptions]; above the longest transaction. 0: Timeout and 1 s; negative: none
	NullTTL  time.Duration // how long "no such product" is cached. 0: 1 min
	Log      *slog.Logger  // nil: none
}

// Shop is the service, all but its listener.
type Shop struct {
	DB       *Database
	Redis    *redis.Client
	Filter   *bloom.Filter
	Guard    *bloom.Guard[Product]
	cfg      Config
	embedded *miniredis.Miniredis
	metrics  *metrics
}

const (
	defaultConns   = 8
	defaultMaxAge  = 24 * time.Hour
	defaultTimeout = 2 * time.Second

	// Several loads wait for each connection, so that a burst of products that are
	// not cached is no overload yet. As many more wait in the guard.
	loadsPerConn = 8
)

// Open connects to what cfg names. The database must be there; Redis need not be,
// a shop serves without. It does not build the filter, see [Shop.KeepWarm].
func Open(ctx context.Context, cfg Config) (_ *Shop, err error) {
	cfg.complete()
	s := &Shop{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if s.DB, err = OpenDatabase(ctx, cfg.DSN, cfg.Conns, cfg.RTT); err != nil {
		return nil, err
	}
	if err := s.seed(ctx); err != nil {
		return nil, err
	}
	if err := s.openRedis(); err != nil {
		return nil, err
	}
	if err := s.openGuard(); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(s)
	return s, nil
}

func (c *Config) complete() {
	setDefault(&c.Conns, defaultConns)
	setDefault(&c.Prefix, "shop:")
	setDefault(&c.MaxAge, defaultMaxAge)
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.Settle, c.Timeout+time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// seed makes products if there are none.
func (s *Shop) seed(ctx context.Context) error {
	if s.cfg.Seed < 0 {
		return fmt.Errorf("-seed %d: want 0 or more", s.cfg.Seed)
	}
	if s.cfg.Seed == 0 {
		return nil
	}
	if rows, err := s.DB.Count(ctx); err != nil || rows > 0 {
		return err
	}
	said := time.Now()
	return s.DB.Seed(ctx, s.cfg.Seed, func(done int) {
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			s.cfg.Log.Info("seeding", "done", done, "of", s.cfg.Seed)
		}
	})
}

func (s *Shop) openRedis() error {
	target := s.cfg.Redis
	if target == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("start the embedded Redis: %w", err)
		}
		s.embedded, target = embedded, embedded.Addr()
	}
	opts := &redis.Options{Addr: target}
	if strings.Contains(target, "://") {
		var err error
		opts, err = redis.ParseURL(target)
		if bad := (*url.Error)(nil); errors.As(err, &bad) {
			err = bad.Err // the whole one repeats the URL, password and all
		}
		if err != nil {
			return fmt.Errorf("-redis: %w", err)
		}
	}
	// A Redis that does not answer must not use up the time of a request: the
	// database is asked instead.
	opts.ContextTimeoutEnabled = true
	opts.DialTimeout = s.cfg.Timeout / 4
	opts.ReadTimeout = s.cfg.Timeout / 4
	opts.WriteTimeout = s.cfg.Timeout / 4
	opts.MaxRetries, opts.DialerRetries = 1, 1
	s.Redis = redis.NewClient(opts)
	return nil
}

func (s *Shop) openGuard() (err error) {
	s.Filter, err = bloom.New(bloom.NewBitmap(s.Redis, s.cfg.Prefix+"filter"), bloom.Config{
		Layout: bloom.Blocked, // reads cost least; the size is chosen when it is built
	})
	if err != nil {
		return err
	}
	s.Guard, err = bloom.NewGuard(s.Filter, bloom.NewRedisCache(s.Redis, s.cfg.Prefix+"product:"), s.DB.Lookup,
		&bloom.GuardOptions[Product]{
			NullTTL:     s.cfg.NullTTL,
			LoadTimeout: s.cfg.Timeout,
			MaxLoads:    loadsPerConn * s.cfg.Conns,
			Validate:    ValidateID,
		})
	return err
}

// Close ends what is open. Requests must have ended before.
func (s *Shop) Close(ctx context.Context) error {
	var err error
	if s.Guard != nil {
		err = s.Guard.Close(ctx)
	}
	if s.Redis != nil {
		err = errors.Join(err, s.Redis.Close())
	}
	if s.embedded != nil {
		s.embedded.Close()
	}
	if s.DB != nil {
		err = errors.Join(err, s.DB.Close())
	}
	return err
}
