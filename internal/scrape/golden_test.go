package scrape

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden reports")

// Every recorded page of a real server, and hand-made ones of the other engines, give the report beside it.
func TestPagesGiveTheirReports(t *testing.T) {
	pages, err := filepath.Glob("testdata/pages/*.txt")
	if err != nil || len(pages) < 25 {
		t.Fatalf("found %d pages: %v", len(pages), err)
	}
	page := NewPage() // one for all: nothing of a page may survive into the next
	for _, path := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err = page.Parse(body); err != nil {
				t.Fatalf("parsing %s: %v", path, err)
			}
			got, err := json.MarshalIndent(page.Report(), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(path, ".txt") + ".json"
			if *update {
				if err = os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
				t.Errorf("report of %s (-want +got):\n%s", path, diff)
			}
		})
	}
}
