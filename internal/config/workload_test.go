package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const chatWorkload = `length: 2m
classes:
  - name: chat
    rate: 1.5
    prompt: [400, 1200]
    output: [100, 500]
    shared: {texts: 40, tokens: 6000, zipf: 0.8}
    turns: 3
    think: 20s
    ttft: 2s
  - {name: document, rate: 0.1, prompt: [40000, 60000], output: [500, 500]}
`

func TestParseWorkload(t *testing.T) {
	w, err := ParseWorkload("w.yaml", []byte(chatWorkload))
	if err != nil {
		t.Fatal(err)
	}
	want := &Workload{Length: 2 * time.Minute, Classes: []WorkloadClass{
		{Name: "chat", Rate: 1.5, Prompt: [2]int{400, 1200}, Output: [2]int{100, 500}, Texts: 40, Share: 6000, Zipf: 0.8, Turns: 3, Think: 20 * time.Second, TTFT: 2 * time.Second},
		{Name: "document", Rate: 0.1, Prompt: [2]int{40000, 60000}, Output: [2]int{500, 500}, Texts: 1, Turns: 1},
	}}
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, c := range []struct{ from, to, want string }{
		{"rate: 1.5", "rate: fast", "w.yaml:4:11: classes[0].rate"},
		{"[400, 1200]", "[1200, 400]", "w.yaml:5:13: classes[0].prompt"},
		{"[400, 1200]", "400", "classes[0].prompt"},
		{"[400, 1200]", "[400]", "want two whole numbers"},
		{"    rate: 1.5\n", "", "a class has name, rate, prompt and output"},
		{"zipf", "zip", "classes[0].shared.zip"},
		{"turns: 3", "turns: 0", "must be at least 1"},
		{chatWorkload, "length: 1m", "has no classes"},
		{chatWorkload, "", "has no classes"},
	} {
		_, err := ParseWorkload("w.yaml", []byte(strings.Replace(chatWorkload, c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.to, err, c.want)
		}
	}
}

func FuzzParseWorkload(f *testing.F) {
	f.Add([]byte(chatWorkload))
	f.Add([]byte("classes: [{name: a, rate: 1, prompt: [1, 2], output: [1, 2]}]"))
	f.Add([]byte("classes: {}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := ParseWorkload("w.yaml", data)
		if err != nil {
			return
		}
		for _, c := range w.Classes {
			if c.Name == "" || !(c.Rate > 0) || c.Prompt[0] < 1 || c.Prompt[1] < c.Prompt[0] || c.Output[0] < 1 || c.Turns < 1 || c.Texts < 1 {
				t.Fatalf("%+v", c)
			}
		}
	})
}
