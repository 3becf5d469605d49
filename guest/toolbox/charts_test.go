package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// charts of Python code, without their images, which must be PNG.
func (b *box) charts(code string, envs object) []interface{} {
	b.t.Helper()
	answer := b.want(200, "POST", "process/code-run", object{"language": "python", "code": code, "envs": envs})
	if answer["exitCode"] != float64(0) {
		b.t.Fatal(answer["result"])
	}
	artifacts, _ := answer["artifacts"].(map[string]interface{})
	found, _ := artifacts["charts"].([]interface{})
	for _, one := range found {
		chart := one.(map[string]interface{})
		if png, ok := chart["png"].(string); ok && !strings.HasPrefix(png, "iVBORw0KGgo") {
			b.t.Fatalf("%.40q is no PNG", png)
		}
		delete(chart, "png")
	}
	return found
}

func TestChartsOfCodeAreReadAsFarAsTheyAreCharts(t *testing.T) {
	needs(t, "python3")
	b := startBox(t)
	if found := b.charts("print(1)", nil); found != nil {
		t.Fatal(found)
	}
	write := "import os\nos.write(int(os.environ['RELEAP_CHARTS_FD']), %)"
	got := b.charts(strings.Replace(write, "%", `b'{"title":"a"}\nno chart\n[1]\n{"title":\n{"title":"b"}\n{"cut":1}'`, 1), nil)
	want := []interface{}{map[string]interface{}{"title": "a"}, map[string]interface{}{"title": "b"}}
	if !reflect.DeepEqual(got, want) {
		t.Fatal(got)
	}
	if got := b.charts(strings.Replace(write, "%", `b'{}\n' * 100000`, 1), nil); len(got) != chartsOf {
		t.Fatal(len(got))
	}
	// Code that chooses a backend has no charts, and its own path of modules is kept.
	b.charts("import os\nassert 'RELEAP_CHARTS_FD' not in os.environ", object{"MPLBACKEND": "agg"})
	b.charts("import sys\nassert '/own/path' in sys.path", object{"PYTHONPATH": "/own/path"})
}

// Needs a folder with matplotlib for the Python of this machine: `pip install --target`.
func TestFiguresThatPythonShowsBecomeCharts(t *testing.T) {
	modules := os.Getenv("RELEAP_TEST_MATPLOTLIB")
	if modules == "" {
		t.Skip("RELEAP_TEST_MATPLOTLIB is not set")
	}
	b := startBox(t)
	envs := object{"PYTHONPATH": modules}
	for name, one := range map[string]struct {
		code string
		want object
	}{
		"line": {
			"plt.plot([1, 2], [3, float('nan')], label='a')\nplt.title('T')\nplt.xlabel('x')\nplt.yscale('log')",
			object{"type": "line", "title": "T", "x_label": "x", "y_label": "", "y_scale": "log",
				"elements": []interface{}{object{"label": "a", "points": []interface{}{[]interface{}{1.0, 3.0}, []interface{}{2.0, nil}}}}},
		},
		"scatter": {
			"plt.scatter([1, 2], [3, 4])",
			object{"type": "scatter", "elements": []interface{}{object{"label": "", "points": []interface{}{[]interface{}{1.0, 3.0}, []interface{}{2.0, 4.0}}}}},
		},
		"bar": {
			"plt.bar(['a', 'b'], [1, 2.5], label='g')",
			object{"type": "bar", "elements": []interface{}{object{"label": "a", "group": "g", "value": "1"}, object{"label": "b", "group": "g", "value": "2.5"}}},
		},
		"barh": {
			"plt.barh(['a'], [7])",
			object{"type": "bar", "elements": []interface{}{object{"label": "a", "group": "", "value": "7"}}},
		},
		"pie": {
			"plt.pie([1, 3], labels=['a', 'b'])",
			object{"type": "pie", "elements": []interface{}{object{"label": "a", "angle": 90.0, "radius": 1.0}, object{"label": "b", "angle": 270.0, "radius": 1.0}}},
		},
		"box": {
			"plt.boxplot([1, 2, 3, 4, 100])",
			object{"type": "box_and_whisker", "elements": []interface{}{object{"label": "1", "min": 1.0, "first_quartile": 2.0, "median": 3.0,
				"third_quartile": 4.0, "max": 4.0, "outliers": []interface{}{100.0}}}},
		},
		"image": {"plt.imshow([[1, 2], [3, 4]])", object{"type": "unknown", "elements": []interface{}{}}},
	} {
		found := b.charts("import matplotlib.pyplot as plt\n"+one.code+"\nplt.show()", envs)
		if len(found) != 1 {
			t.Fatal(name, found)
		}
		for field, want := range one.want {
			got := found[0].(map[string]interface{})[field]
			if !reflect.DeepEqual(got, plain(want)) {
				t.Errorf("%s: %s is %v, and not %v", name, field, got, want)
			}
		}
	}
	found := b.charts("import matplotlib.pyplot as plt\nf, (a, b) = plt.subplots(2)\na.plot([1])\nb.bar([1], [2])\nf.suptitle('both')\nf.show()\nplt.figure()\nplt.show()", envs)
	if len(found) != 3 {
		t.Fatal(found)
	}
	both := found[0].(map[string]interface{})
	if both["type"] != "composite_chart" || both["title"] != "both" || len(both["elements"].([]interface{})) != 2 {
		t.Fatal(both)
	}
}

// plain is a value as it is read from JSON.
func plain(value interface{}) interface{} {
	switch value := value.(type) {
	case object:
		all := map[string]interface{}{}
		for key, one := range value {
			all[key] = plain(one)
		}
		return all
	case []interface{}:
		all := make([]interface{}, len(value))
		for i, one := range value {
			all[i] = plain(one)
		}
		return all
	}
	return value
}
