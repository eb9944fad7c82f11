package bloom

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"
)

// Every entry begins with a tag, so that any value is told from a null and from a
// lease. Another tag is another library's: it is neither filled nor dropped.
const (
	tagNone  = 0 // nothing there
	tagValue = 'V'
	tagNull  = 'N'
	tagLease = 'L'
	tagOther = '?'
)

func entryTag(entry []byte) byte {
	switch {
	case entry == nil:
		return tagNone
	case len(entry) > 0 && entry[0] == tagValue:
		return tagValue
	case len(entry) == 1 && entry[0] == tagNull:
		return tagNull
	case len(entry) == 1+tokenBytes && entry[0] == tagLease:
		return tagLease
	}
	return tagOther
}

// decode returns the value of an entry. A nil pointer is none, see isNil.
func (g *Guard[V]) decode(entry []byte) (v V, err error) {
	defer catch(&err)
	v, err = g.opts.Codec.Unmarshal(entry[1:])
	if err == nil && isNil(v) {
		err = fmt.Errorf("decoded a nil %v", reflect.TypeFor[V]())
	}
	return v, err
}

// encode returns the entry of what a load found.
func (g *Guard[V]) encode(v V, err error) (entry []byte, ttl time.Duration, encodeErr error) {
	if err != nil {
		return []byte{tagNull}, g.jitter(g.opts.NullTTL), nil
	}
	b, err := g.opts.Codec.Marshal(v)
	if err != nil {
		return nil, 0, err
	}
	return append([]byte{tagValue}, b...), g.jitter(g.opts.TTL), nil
}

// jitter leaves at least a millisecond, the unit of Redis.
func (g *Guard[V]) jitter(ttl time.Duration) time.Duration {
	return max(ttl-time.Duration(rand.Float64()*g.opts.Jitter*float64(ttl)), time.Millisecond)
}

type jsonCodec[V any] struct{}

func (jsonCodec[V]) Marshal(v V) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec[V]) Unmarshal(b []byte) (v V, err error) {
	err = json.Unmarshal(b, &v)
	return v, err
}

// isNil reports whether a value is a nil pointer, also in an interface. That is no
// row: a loader should have returned ErrNotFound.
func isNil[V any](v V) bool {
	switch reflect.TypeFor[V]().Kind() {
	case reflect.Pointer, reflect.Interface:
		r := reflect.ValueOf(v)
		return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
	}
	return false
}
