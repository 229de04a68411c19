package route_test

import (
	"os"
	"path/filepath"
	"testing"

	"pointsman.dev/pointsman/internal/routecase"
)

// The routing cases of testdata, which "pointsman check" runs too.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d cases, error %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := routecase.Run(f, data); err != nil {
			t.Error(err)
		}
	}
}
