package bloomotel

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Translated as OpenTelemetry's "Prometheus and OpenMetrics compatibility" says, the
// names are those that bloomprom's dashboard queries.
func TestPrometheusNamesAreThoseOfTheDashboard(t *testing.T) {
	dashboard, err := os.ReadFile("../bloomprom/dashboard.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("outside of the repository")
	}
	require.NoError(t, err)
	queried := map[string]bool{}
	for _, name := range regexp.MustCompile(`bloom_\w+`).FindAllString(string(dashboard), -1) {
		queried[name] = true
	}

	h := newHarness(t)
	h.register(t, map[string]Guard{"orders": fakeGuard{}}, map[string]Filter{"orders": answering(fullInfo(), nil)}, nil)
	var collected metricdata.ResourceMetrics
	require.NoError(t, h.reader.Collect(t.Context(), &collected))
	exported := map[string]bool{}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		name := strings.ReplaceAll(m.Name, ".", "_")
		suffix := map[string]string{"By": "_bytes", "s": "_seconds", "1": "_ratio"}[m.Unit] // {…} is dropped
		name = strings.TrimSuffix(name, suffix) + suffix
		if _, counts := m.Data.(metricdata.Sum[int64]); counts {
			name += "_total"
		}
		exported[name] = true
	}
	require.Equal(t, queried, exported)
}
