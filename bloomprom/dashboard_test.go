package bloomprom

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// dashboard is what the tests look at of Grafana's format.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type, Definition string
			Datasource             source
		}
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		Datasource source
		Targets    []struct {
			Expr       string
			Datasource source
		}
	}
}

type source struct{ UID string }

var templated = source{UID: "${datasource}"}

var metricNames = regexp.MustCompile(`bloom_\w+`)

// exported returns the names of all metrics of the collector.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(everything()))
	families, err := reg.Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	return names
}

// The dashboard queries metrics that the collector exports, and leaves none out.
func TestDashboardQueriesWhatIsExported(t *testing.T) {
	d := readDashboard(t)
	queried := map[string]bool{}
	for _, v := range d.Templating.List {
		for _, name := range metricNames.FindAllString(v.Definition, -1) {
			queried[name] = true
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			found := metricNames.FindAllString(target.Expr, -1)
			require.NotEmpty(t, found, "%s: %s", p.Title, target.Expr)
			for _, name := range found {
				queried[name] = true
			}
		}
	}

	require.Equal(t, exported(t), queried)
}

func TestDashboardIsTemplated(t *testing.T) {
	d := readDashboard(t)
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
		if v.Type == "query" {
			require.Equal(t, templated, v.Datasource, v.Name)
		}
	}
	require.Equal(t, map[string]string{"datasource": "datasource", "guard": "query", "filter": "query"}, variables)

	ids := map[int]bool{}
	selects := regexp.MustCompile(`bloom_(guard|filter)_\w+(\{\w+=~"\$(guard|filter)"\})?`)
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "id %d is used twice", p.ID)
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		require.Equal(t, templated, p.Datasource, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, templated, target.Datasource, p.Title)
			for _, m := range selects.FindAllStringSubmatch(target.Expr, -1) {
				require.Equal(t, m[1], m[3], "%s: not by variable: %s", p.Title, m[0])
			}
		}
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}
