package bloom

import (
	"fmt"
	"strings"
)

// companionKey names the keys that belong to a filter beside its own: in the
// same cluster slot, and such that no two filters share one. The companion of
// "orders" is "{orders}:next", that of "a{t}b" is "{t}:next:a{t}b".
func companionKey(key, role string) string {
	if tag, ok := hashTag(key); ok {
		return "{" + tag + "}:" + role + ":" + key
	}
	return "{" + key + "}:" + role
}

// hashTag returns what stands between the braces of a key that checkKey allows.
func hashTag(key string) (string, bool) {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return "", false
	}
	tag, _, ok := strings.Cut(rest, "}")
	return tag, ok
}

// companionRoles are the keys that a filter may have beside its own: the next
// generation, two scratch keys of its merge, and a rebuild's state. Scratch keys
// have roles of their own because a mere suffix is not safe: "{t}:next:a{t}b:a"
// is the next generation of the filter "a{t}b:a".
var companionRoles = [...]string{"next", "next-a", "next-b", "build"}

// filterKeys lists every key that a filter at key uses.
func filterKeys(key string) []string {
	keys := []string{key}
	for _, role := range companionRoles {
		keys = append(keys, companionKey(key, role))
	}
	return keys
}

// checkKey refuses keys whose companions would lie in another cluster slot, or
// could be another filter's.
func checkKey(key string) error {
	const want = "want any bytes, with braces only as one non-empty hash tag such as a{tag}b"
	if key == "" {
		return fmt.Errorf("bloom: empty key: %s: %w", want, ErrInvalidParams)
	}
	if open, end := strings.Count(key, "{"), strings.Count(key, "}"); open+end > 0 {
		if tag, ok := hashTag(key); open != 1 || end != 1 || !ok || tag == "" {
			return fmt.Errorf("bloom: key %q: %s: %w", key, want, ErrInvalidParams)
		}
	}
	for _, role := range companionRoles {
		if tag, ok := hashTag(key); ok && strings.HasPrefix(key, "{"+tag+"}:"+role) {
			return fmt.Errorf("bloom: key %q: {…}:%s… names what belongs to a filter: %w", key, role, ErrInvalidParams)
		}
	}
	return nil
}
